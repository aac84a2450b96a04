-- Closes the latch with a count unless it is closed.
-- ARGV: 3 count  4 ttl in ms
-- Returns: {1} it was open | {0} it was closed | {-3, family} in use as something else
local fault = load()
if fault then return fault end
for _, list in ipairs({ state.h, { (waiter_from(0)) }, foreign }) do
  for _, item in ipairs(list) do
    local used = family(item.kind)
    save()
    return { -3, used }
  end
end
local closed = redis.call('EXISTS', raw) == 1
if not closed then
  show_latch(tonumber(ARGV[3]), ARGV[4])
  state.latch = { ttl = ARGV[4], counted = {} }
  tell_latch(1)
end
save()
return { closed and 0 or 1 }

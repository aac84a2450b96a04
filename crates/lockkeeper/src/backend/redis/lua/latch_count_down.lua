-- Counts down by one. The ids that were counted are kept while the latch is closed, so that a resend
-- does not count twice.
-- ARGV: 3 ttl in ms
-- Returns: what is left
local fault = load()
if fault then return fault end
if not is_latch() then save() return 0 end
state.latch = state.latch or {}
if not state.latch[id] then
  state.latch[id] = 1
  if redis.call('DECR', raw) <= 0 then
    redis.call('DEL', raw)
    state.latch = nil
    redis.call('PUBLISH', KEYS[8], 0)
    save()
    return 0
  end
  if redis.call('PTTL', raw) > 0 then redis.call('PEXPIRE', raw, ARGV[3]) end
end
save()
return tonumber(redis.call('GET', raw))

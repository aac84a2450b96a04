-- Counts down by one. The ids that were counted are kept while the latch is closed, so that a resend
-- does not count twice. A latch of ours then has its whole time again.
-- Returns: what is left
local fault = load()
if fault then return fault end
if not is_latch() then save() return 0 end
state.latch = state.latch or { counted = {} }
local left = tonumber(redis.call('GET', raw))
if not state.latch.counted[id] then
  state.latch.counted[id] = 1
  left = left - 1
  if left <= 0 then
    redis.call('DEL', raw)
    state.latch, state.v = nil, nil
    tell_latch(0)
  elseif state.latch.ttl then
    show_latch(left, state.latch.ttl)
  else
    redis.call('DECR', raw)
  end
end
save()
return left

-- A write waits no more: from now on its id is remembered for a while. Not if the id is by now that of another write.
local function remember(waiting, key, id, order, ms)
  if not key then return end
  if redis.call('HGET', waiting, id) == order then redis.call('HDEL', waiting, id) end
  local known = redis.call('GET', key)
  if not known or known == order then redis.call('SET', key, order, 'PX', ms) end
end

-- Turns a hold for writing into one for reading, under the same token.
-- Returns: {1} | {0, reason of the eviction or ''} not ours any more
local fault = load()
if fault then return fault end
local mine = find(state.h)
local lost = why_lost()
if mine and is_write(mine.kind) then
  redis.call('HDEL', raw, field(mine))
  mine.kind = mine.kind == 'write' and 'read' or 'fair-read'
  redis.call('HSET', raw, 'mode', 'read')
  redis.call('HINCRBY', raw, mine.owner, 1)
  keep_reading(mine.owner)
  keep_alive()
  redis.call('PUBLISH', rw_channel, 1)
end
save()
return mine and { 1 } or lost

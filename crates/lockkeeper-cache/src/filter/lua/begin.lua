-- Begins a new filter in the slot that is not used, unless somebody else is at it. What another server has taken in
-- is dropped.
-- ARGV: 1 builder  2 ms until he is taken for dead  3 new stamp  4 shape, BITS:HASHES
-- Returns: 0 begun, by this call or an earlier one of the same builder | ms that another has left
local builder, lease, stamp, shape = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

if not ours then redis.call('UNLINK', head, slots.a, slots.b) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local other = redis.call('HGET', head, 'builder')
-- Sent a second time, because the first answer was lost; it may even come when all is over.
if other == builder or redis.call('HGET', head, 'finished') == builder then return 0 end
if other then
  local left = tonumber(redis.call('HGET', head, 'until') or '0') - now
  -- More than a lease is from a clock that went backwards.
  if left > 0 and left <= lease then return left end
end

local slot = redis.call('HGET', head, 'used') == 'a' and 'b' or 'a'
redis.call('UNLINK', slots[slot], upload)
-- One bit more than there are, so that the string is whole from the start and an evicted one is known.
redis.call('SETBIT', slots[slot], string.match(shape, '^%d+'), 1)
redis.call('HSET', head, 'by', by, 'stamp', stamped(stamp), 'built', slot, slot, shape,
  'builder', builder, 'until', string.format('%.0f', now + lease))
return 0

-- Adds what was uploaded to what was inserted meanwhile, and puts that in the place of the filter that
-- is used.
-- ARGV: 1 builder  2 new stamp
-- Returns: 1 done, by this call or an earlier one | 0 what was built is gone, or another server has taken it in
local builder, stamp = ARGV[1], ARGV[2]

if not ours then return 0 end
-- Also when somebody else has begun since.
if redis.call('HGET', head, 'finished') == builder then return 1 end
if redis.call('HGET', head, 'builder') ~= builder then return 0 end
local built = redis.call('HGET', head, 'built')
local old = built == 'a' and 'b' or 'a'
local bytes = string.match(redis.call('HGET', head, built), '^%d+') / 8
local whole = redis.call('STRLEN', upload) == bytes and redis.call('STRLEN', slots[built]) == bytes + 1
redis.call('UNLINK', slots[whole and old or built])
redis.call('HDEL', head, whole and old or built)
if whole then
  redis.call('BITOP', 'OR', slots[built], slots[built], upload)
  redis.call('HSET', head, 'used', built, 'finished', builder)
end
redis.call('UNLINK', upload)
redis.call('HDEL', head, 'built', 'builder', 'until')
redis.call('HSET', head, 'stamp', stamped(stamp))
return whole and 1 or 0

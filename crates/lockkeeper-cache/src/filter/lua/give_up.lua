-- Drops what was being built, whichever server has taken it in.
-- ARGV: 1 builder  2 new stamp
-- Returns: 1 dropped | 0 it was not there, or is somebody else's by now
local builder, stamp = ARGV[1], ARGV[2]

if redis.call('HGET', head, 'builder') ~= builder then return 0 end
local built = redis.call('HGET', head, 'built')
redis.call('UNLINK', slots[built], upload)
redis.call('HDEL', head, built, 'built', 'builder', 'until')
redis.call('HSET', head, 'stamp', stamped(stamp))
return 1

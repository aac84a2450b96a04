-- Takes the right to apply a log, or keeps it.
-- KEYS: 1 right  ARGV: 1 ticket  2 ms
-- Returns: now and 1 it is ours | 0 it is another's
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {now, 0} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {now, 1}

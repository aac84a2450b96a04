-- What became of a write.
-- KEYS: 1 queue  2 which are buried  ARGV: 1 where it was in the queue
-- Returns: now and 0 it waits | 1 it is a letter | 2 neither
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) > 0 then return {now, 0} end
return {now, redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 and 1 or 2}

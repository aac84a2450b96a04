-- Puts a delete into a queue, or moves it.
-- KEYS: 1 queue  ARGV: 1 ticket and key  2 ms until it is due  3 ms after which it may be forgotten
-- Returns: now
local after, keep = tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZADD', KEYS[1], now + after, ARGV[1])
if redis.call('PTTL', KEYS[1]) < keep then redis.call('PEXPIRE', KEYS[1], keep) end
return {now}

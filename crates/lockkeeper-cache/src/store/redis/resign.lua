-- Gives back the right to apply a log.
-- KEYS: 1 right  ARGV: 1 ticket
-- Returns: now
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return {now}

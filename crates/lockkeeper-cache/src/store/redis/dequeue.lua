-- The database has a write.
-- KEYS: 1 queue  2 which ids wait  3 id, if it has one  ARGV: 1 where it is in the queue  2 ms to remember the id  3 id, if it has one
-- Returns: now
if redis.call('XDEL', KEYS[1], ARGV[1]) == 1 then remember(KEYS[2], KEYS[3], ARGV[3], ARGV[1], ARGV[2]) end
return {now}

-- Makes a letter of a write in a queue.
-- KEYS: 1 queue  2 letters  3 which are buried  4 which ids wait  5 id, if it has one
-- ARGV: 1 where it is in the queue  2 no more than so many  3 why  4 attempts  5 ms to remember the id  6 id, if it has one
-- Returns: now and 1 it is not in the queue | 0 there are as many letters as there may be
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not found then return {now, 1} end
if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[2]) then return {now, 0} end
local letter =
  redis.call('XADD', KEYS[2], '*', 'order', ARGV[1], 'why', ARGV[3], 'attempts', ARGV[4], unpack(found[2]))
redis.call('HSET', KEYS[3], ARGV[1], letter)
redis.call('XDEL', KEYS[1], ARGV[1])
remember(KEYS[4], KEYS[5], ARGV[6], ARGV[1], ARGV[5])
return {now, 1}

-- Appends a write to a queue, once for each id.
-- KEYS: 1 queue  2 id  ARGV: 1 no more than so many  2 ms to remember the id  3 … names and contents of the fields
-- Returns: now, and where it is in the queue | now: there are as many as there may be
local before = redis.call('GET', KEYS[2])
if before then return {now, before} end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[1]) then return {now} end
local order = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3))
redis.call('SET', KEYS[2], order, 'PX', ARGV[2])
return {now, order}

-- Appends a write to a queue, once for each id.
-- KEYS: 1 queue  2 which ids wait  3 id  ARGV: 1 no more than so many  2 ms to remember the id  3 … names and contents of the
-- fields, the id first
-- Returns: now, and where it is in the queue | now: there are as many as there may be
local queue, waiting, id = KEYS[1], KEYS[2], ARGV[4]
local before = redis.call('GET', KEYS[3])
if before then return {now, before} end
before = redis.call('HGET', waiting, id)
if before and #redis.call('XRANGE', queue, before, before) > 0 then return {now, before} end
local there = redis.call('XLEN', queue)
if there >= tonumber(ARGV[1]) then return {now} end
-- What is left there was taken out of the queue by somebody who does not know of it.
if there == 0 then redis.call('DEL', waiting) end
local order = redis.call('XADD', queue, '*', unpack(ARGV, 3))
redis.call('HSET', waiting, id, order)
redis.call('SET', KEYS[3], order, 'PX', ARGV[2])
return {now, order}

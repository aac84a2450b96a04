-- Takes a letter away, and appends its write to the queue again if there is room for so many.
-- KEYS: 1 queue  2 letters  3 which are buried  ARGV: 1 letter  2 no more than so many | nothing: it is not appended
-- Returns: now: there is no such letter | now and 0 there is no room, or nothing was to be appended | now and its new place
local queue, letters, buried = KEYS[1], KEYS[2], KEYS[3]
local found = redis.call('XRANGE', letters, ARGV[1], ARGV[1])[1]
if not found then return {now} end
local most, order = tonumber(ARGV[2]), 0
if most and redis.call('XLEN', queue) >= most then return {now, 0} end
-- Behind its order, why, and the attempts.
if most then order = redis.call('XADD', queue, '*', unpack(found[2], 7)) end
redis.call('HDEL', buried, found[2][2])
redis.call('XDEL', letters, ARGV[1])
return {now, order}

-- Takes a letter away, and appends its write to the queue again if there is room for so many.
-- KEYS: 1 queue  2 letters  3 which are buried  4 which ids wait  5 id, if it has one
-- ARGV: 1 letter  2 no more than so many | nothing: it is not appended  3 ms to remember the id  4 id, if it has one
-- Returns: now: there is no such letter | now and 0 there is no room, or nothing was to be appended | now and its new place
local queue, letters, buried, waiting = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local found = redis.call('XRANGE', letters, ARGV[1], ARGV[1])[1]
if not found then return {now} end
local most, order, before = tonumber(ARGV[2]), 0, found[2][2]
if most and redis.call('XLEN', queue) >= most then return {now, 0} end
if most then
  -- Behind its order, why, and the attempts.
  order = redis.call('XADD', queue, '*', unpack(found[2], 7))
  if KEYS[5] then
    redis.call('HSET', waiting, ARGV[4], order)
    redis.call('SET', KEYS[5], order, 'PX', ARGV[3])
  end
else
  remember(waiting, KEYS[5], ARGV[4], before, ARGV[3])
end
redis.call('HDEL', buried, before)
redis.call('XDEL', letters, ARGV[1])
return {now, order}

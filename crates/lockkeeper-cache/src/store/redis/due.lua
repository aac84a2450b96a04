-- The deletes that are due, and when the next one is.
-- KEYS: 1 queue  ARGV: 1 no more than so many
-- Returns: now, each with its time, and ms until the next or -1
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local next_ = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {now, due, next_[2] and tonumber(next_[2]) - now or -1}

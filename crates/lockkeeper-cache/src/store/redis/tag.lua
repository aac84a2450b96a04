-- Adds a member to sets, in which it is remembered for a while.
-- KEYS: sets  ARGV: 1 member  2 ms
-- Returns: now
local member, ms = ARGV[1], tonumber(ARGV[2])
for _, key in ipairs(KEYS) do
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local there = redis.call('ZSCORE', key, member)
  if not there or tonumber(there) < now + ms then redis.call('ZADD', key, now + ms, member) end
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end
return {now}

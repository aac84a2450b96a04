-- Takes the lock, and tells the counter. ARGV: the value; the request; how long; the first and the
-- last token that are proposed; who waits, or nothing; for how long without a word; since when.
-- KEYS[8]: that this attempt was given up before it arrived.
-- {1, counter, accepted} · {2, value, token, left}: by the same request before · {0, value, left}:
-- by somebody else · {-1, why, left}: the node does not vote.
local value, id, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local first, last, member, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])

local why, left = absent()
if why then return { -1, why, left } end
-- Not the lock among them: of another type, it must be an error.
local late, next, token = unpack(redis.call('MGET', KEYS[8], turn, settled))
if late then return { 0, 'given up', 0 } end
local held = redis.call('GET', lock)
left = held and redis.call('PTTL', lock)
if held and string.find(held, '#' .. id .. '#', 1, true) then
  return { 2, held, token_of(held), left }
end
if not held then
  -- The next in line goes first.
  if next and next ~= member then
    held, left = next, redis.call('PTTL', turn)
  end
end
if held then
  if member ~= '' then
    local time = now()
    -- By its own clock, so that the nodes agree on the order; a wrong one gains ten seconds.
    local since = math.min(math.max(tonumber(ARGV[8]), time - 10000), time)
    redis.call('ZADD', queue, 'NX', since, member)
    redis.call('ZADD', waiters, time + lease, member)
    redis.call('PEXPIRE', queue, lease)
    redis.call('PEXPIRE', waiters, lease)
    purge(time)
  end
  return { 0, held, left }
end
redis.call('SET', lock, value, 'PX', ARGV[3])
vote_for(ttl)
leave(member)
if next then redis.call('DEL', turn) end
if counter < first then
  count_to(last)
  if token then redis.call('DEL', settled) end
  return { 1, counter, 1 }
end
redis.call('SET', settled, '0', 'PX', ARGV[3])
return { 1, counter, 0 }

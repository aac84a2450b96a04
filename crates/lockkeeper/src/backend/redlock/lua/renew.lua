-- Lets the lease begin anew. ARGV: the value; how long, or nothing to look only; where it is written
-- why the lock was taken away. {1} · {0, why} · {-1, why, left}: the node does not vote.
local value, ttl = ARGV[1], tonumber(ARGV[2])
local why, left = absent()
if why then return { -1, why, left } end
if redis.call('GET', lock) ~= value then return { 0, redis.call('GET', KEYS[8]) or '' } end
if ttl then
  redis.call('PEXPIRE', lock, ARGV[2])
  redis.call('PEXPIRE', settled, ARGV[2])
  vote_for(ttl)
end
return { 1 }

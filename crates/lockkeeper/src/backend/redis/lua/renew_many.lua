-- Lets the leases of many mutexes end `ttl` from now, each the short way. Only longer: one that comes
-- late must not shorten a later one.
-- KEYS: for each 1 lock  2 our state
-- ARGV: for each 1 field  2 ttl in ms
-- Returns: for each 1 renewed | 0 not that simple, or not ours any more: to be renewed on its own
local reply = {}
for at = 1, #KEYS, 2 do
  local lock, ttl = KEYS[at], ARGV[at + 1]
  local simple = held_alone(lock, KEYS[at + 1], ARGV[at]) and redis.call('PTTL', lock) <= tonumber(ttl)
  if simple then redis.call('PEXPIRE', lock, ttl) end
  reply[#reply + 1] = simple and 1 or 0
end
return reply

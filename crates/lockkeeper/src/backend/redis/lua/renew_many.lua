-- Lets the leases of many mutexes end `ttl` from now, each the short way.
-- KEYS: for each 1 lock  2 our state
-- ARGV: for each 1 request id  2 ttl in ms  3 number of the renewal, as in renew.lua
-- Returns: for each 1 renewed | 0 not that simple, or not ours any more: to be renewed on its own
local reply = {}
for at = 1, #KEYS / 2 do
  local lock, state_key = KEYS[2 * at - 1], KEYS[2 * at]
  local id, ttl, number = ARGV[3 * at - 2], tonumber(ARGV[3 * at - 1]), tonumber(ARGV[3 * at])
  local stored = held_alone(lock, state_key, id)
  if stored then
    local state = cjson.decode(stored)
    local mine = state.h[1]
    if number > (mine.k or 0) then
      mine.k, mine.exp = number, now + ttl
      redis.call('PEXPIRE', lock, ttl)
      redis.call('SET', state_key, cjson.encode(state), 'PX', kept(ttl))
    end
  end
  reply[#reply + 1] = stored and 1 or 0
end
return reply

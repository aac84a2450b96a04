-- Takes several mutexes, all or none, if all of them are free.
-- KEYS: five for each, as in take.lua
-- ARGV: 1 our client, then for each: request id, owner, kind, ttl in ms, tokens
-- Returns: {} not all of them are free | the first token of each
local count = #KEYS / 5
for member = 0, count - 1 do
  if not is_free(member * 5 + 1) then return {} end
end
local reply = {}
for member = 0, count - 1 do
  local at = member * 5 + 2
  local taken = take(member * 5 + 1, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4],
    ARGV[1])
  reply[#reply + 1] = taken[2]
end
return reply

-- Takes several mutexes, all or none, if all of them are free.
-- KEYS: five for each, as in take.lua
-- ARGV: for each: field, ttl in ms, tokens
-- Returns: {} not all of them are free | the first token of each
for at = 1, #KEYS, 5 do
  if not is_free(at) then return {} end
end
local reply = {}
for member = 0, #KEYS / 5 - 1 do
  local at = member * 3 + 1
  reply[#reply + 1] = take(member * 5 + 1, ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
return reply

-- Claims the record of a follower.
-- KEYS: 1 record  ARGV: 1 ticket  2 token  3 patience in ms
-- Returns: now and 0 refused | 1 it is ours | 2 so, and the token is smaller than the last one; then the position, if there is one
local token, seen, position = unpack(redis.call('HMGET', KEYS[1], 'token', 'seen', 'position'))
local smaller = token and #token == 8 and less(ARGV[2], token)
if smaller then
  local ago = now - (tonumber(seen) or 0)
  if ago >= 0 and ago < tonumber(ARGV[3]) then return {now, 0} end
end
redis.call('HSET', KEYS[1], 'ticket', ARGV[1], 'token', ARGV[2], 'by', BY, 'seen', now)
return {now, smaller and 2 or 1, position}

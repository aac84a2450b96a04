-- Takes the name away from all holders, ours and Redisson's, and raises the token.
-- ARGV: 3 reason
-- Returns: {token, owner, owner, …}
local fault = load()
if fault then return fault end
local reply = { redis.call('INCR', token_key) }
for _, holder in ipairs(state.h) do
  reply[#reply + 1] = holder.owner
  state.e[#state.e + 1] = { id = holder.id, reason = ARGV[3], exp = holder.exp }
  remove(holder)
  redis.call('PUBLISH', wake_prefix .. holder.party, holder.id)
end
for _, holder in ipairs(foreign) do
  reply[#reply + 1] = holder.owner
  if holder.member and redis.call('ZREM', permits_key, holder.member) == 1 then
    redis.call('INCR', raw)
    freed = 'permit'
  end
  freed = freed or (is_read(holder.kind) and 'read' or is_write(holder.kind) and 'write' or 'lock')
end
if #foreign > 0 and redis.call('TYPE', raw).ok == 'hash' then redis.call('DEL', raw) end
state.h, foreign = {}, {}
save()
return reply

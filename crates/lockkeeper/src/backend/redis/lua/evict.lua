-- Takes the name away from its holders, ours and others', and raises the token. Whoever came after the
-- one who asks has looked is left alone: the request may be late.
-- ARGV: 3 reason  4 the last token that was seen
-- Returns: {token, owner, owner, …}
local fault = load()
if fault then return fault end
local reply = { redis.call('INCR', token_key) }
local left = {}
for _, holder in ipairs(state.h) do
  if tonumber(holder.first) <= tonumber(ARGV[4]) then
    reply[#reply + 1] = holder.owner
    state.e[#state.e + 1] = { id = holder.id, reason = ARGV[3], exp = holder.exp }
    hide(holder)
    tell(holder.party, holder.id)
  else
    holder.k = holder.k or 0 -- its token is not the last one any more: it needs a state to tell
    left[#left + 1] = holder
  end
end
for _, holder in ipairs(foreign) do reply[#reply + 1] = holder.owner end
clear_foreign()
state.h, foreign = left, {}
save()
return reply

-- What there is to see.
-- Returns: {now, used as or '', what is left of a latch or -1, then for each holder 'h', owner, kind,
--          token, since, expiry, and for each waiter 'q', owner, kind}
local fault = load()
if fault then return fault end
save()
local count = used_as == 'latch' and tonumber(redis.call('GET', raw)) or -1
local reply = { now, used_as or '', count }
local function say(...)
  for _, word in ipairs({ ... }) do reply[#reply + 1] = tostring(word) end
end
for _, holder in ipairs(state.h) do
  say('h', holder.owner, holder.kind, string.format('%.0f', holder.first),
    string.format('%.0f', holder.since), string.format('%.0f', holder.exp))
end
for _, holder in ipairs(foreign) do
  say('h', holder.owner, holder.kind, redis.call('GET', token_key) or '0',
    string.format('%.0f', now), string.format('%.0f', holder.exp))
end
for _, waiter in ipairs(state.q) do say('q', waiter.owner, waiter.kind) end
return reply

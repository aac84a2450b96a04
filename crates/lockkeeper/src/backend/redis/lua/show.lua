-- What there is to see.
-- Returns: {now, used as or '', what is left of a latch or -1, then for each holder 'h', owner, kind,
--          token, since, expiry or 'never', and for each waiter 'q', owner, kind}
local fault = load()
if fault then return fault end
save()
local count = used_as == 'latch' and tonumber(redis.call('GET', raw)) or -1
local reply = { now, used_as or '', count }
local function say(...)
  for _, word in ipairs({ ... }) do reply[#reply + 1] = tostring(word) end
end
for _, holder in ipairs(state.h) do
  say('h', holder.owner, holder.kind, holder.first, string.format('%.0f', holder.since),
    string.format('%.0f', holder.exp))
end
for _, holder in ipairs(foreign) do
  local ends = holder.exp < math.huge and string.format('%.0f', holder.exp) or 'never'
  say('h', holder.owner, holder.kind, redis.call('GET', token_key) or '0',
    string.format('%.0f', now), ends)
end
for _, of in ipairs(redis.call('ZRANGE', queue_key, 0, -1)) do
  local found = waiter(of)
  if found and found.exp > now then say('q', found.owner, found.kind) end
end
return reply

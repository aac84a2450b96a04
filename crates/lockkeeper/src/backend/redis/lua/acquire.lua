-- Asks for the name. Idempotent: a repeated request finds its grant, which then lasts its full time
-- again, or its place, whose lease then starts again.
-- ARGV: 3 owner  4 kind  5 permits  6 ttl in ms  7 tokens  8 waiter lease in ms, 0: no place
--       9 our client
-- Returns: {1, first token, tokens} granted | {0, ms until something expires, 1 if Redisson holds}
--          queued | {-1} busy | {-2} the owner reads already | {-3, family} in use as something else
local ask = {
  id = id, owner = ARGV[3], kind = ARGV[4], of = tonumber(ARGV[5]), ttl = tonumber(ARGV[6]),
  tokens = tonumber(ARGV[7]), lease = tonumber(ARGV[8]), party = ARGV[9],
}
local fault = load()
if fault then return fault end
hand_over()
if redis.call('EXISTS', KEYS[9]) == 1 then save() return { -1 } end
local mine = find(state.h)
if mine then
  extend(mine, ask.ttl)
  save()
  return { 1, mine.first, mine.tokens }
end
if used_as == 'latch' or (used_as and not is_permit(ask.kind)) then
  save()
  return { -3, used_as }
end
for _, list in ipairs({ state.h, state.q, foreign }) do
  for _, item in ipairs(list) do
    if is_permit(item.kind) ~= is_permit(ask.kind) then
      local used = family(item.kind)
      save()
      return { -3, used }
    end
  end
end
if not is_read(ask.kind) and not is_permit(ask.kind) then
  for _, holder in ipairs(state.h) do
    if is_read(holder.kind) and holder.owner == ask.owner then save() return { -2 } end
  end
end
local own_write = false
for _, holder in ipairs(state.h) do
  if is_read(ask.kind) and holder.owner == ask.owner then own_write = true end
end
local first = #state.q == 0 or state.q[1].id == id
if compatible(ask.kind, ask.owner, ask.of) and (first or own_write or ask.kind == 'read') then
  local _, place = find(state.q)
  if place then table.remove(state.q, place) end
  local holder = grant(ask, ask.ttl)
  save()
  return { 1, holder.first, holder.tokens }
end
if ask.lease == 0 then save() return { -1 } end
local waiter = find(state.q)
if not waiter then
  waiter = ask
  state.q[#state.q + 1] = ask
end
waiter.exp = now + ask.lease
save()
local stranger = #foreign > 0 and 1 or 0
return { 0, next_expiry(), stranger }

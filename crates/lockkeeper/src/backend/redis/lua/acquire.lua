-- Asks for the name. Idempotent: a repeated request finds its grant, which then lasts its full time
-- again, or its place, whose lease then starts again. ARGV as in acquire_alone.lua.
-- Returns: {1, first token, tokens} granted | {0, ms until to ask again or -1, 1 if Redisson's clients
--          have to do with it} queued | {-1} busy | {-2} the owner reads already
--          | {-3, family} in use as something else
local SOON = PLAIN and 50 or 200 -- when it is for others to move and they may not tell us, in ms
local owner = string.match(ARGV[3], '^(.*)#%x+#%x+#%d+#%d+#%d+$')
local ask = {
  id = id, owner = owner or ARGV[3], field = owner and ARGV[3] or nil, kind = ARGV[4], of = tonumber(ARGV[5]), ttl = tonumber(ARGV[6]),
  tokens = tonumber(ARGV[7]), lease = tonumber(ARGV[8]), party = ARGV[9], question = ARGV[10],
}
local fault = load()
if fault then return fault end
if redis.call('EXISTS', late_key) == 1 then save() return { -1 } end
local mine = find(state.h)
if mine then
  -- A copy that comes late must not shorten it.
  if mine.exp < now + ask.ttl then extend(mine, ask.ttl) end
  save()
  return { 1, tonumber(mine.first), mine.tokens }
end
if used_as == 'latch' or (used_as and not is_permit(ask.kind)) then
  save()
  return { -3, used_as }
end
local head = waiter_from(0)
for _, list in ipairs({ state.h, { head }, foreign }) do
  for _, item in ipairs(list) do
    if is_permit(item.kind) ~= is_permit(ask.kind) and not (PLAIN and list == foreign) then
      local used = family(item.kind)
      save()
      return { -3, used }
    end
  end
end
local own = false
for _, holder in ipairs(state.h) do
  if holder.owner == ask.owner then
    if is_read(ask.kind) then
      own = true
    elseif is_read(holder.kind) and not is_permit(ask.kind) then
      save()
      return { -2 }
    end
  end
end
local first = not head or head.id == id
local free = compatible(ask.kind, ask.owner, ask.of)
-- Whoever comes when nobody of ours waits need not leave anything to others, unless it is to be fair.
local polite = head or ask.kind == 'fair-mutex'
if free and (first or own or ask.kind == 'read') and not (polite and yields(ask)) then
  if waiter(id) then leave(id, ask.kind) end
  local holder = grant(ask, ask.ttl)
  save()
  return { 1, tonumber(holder.first), holder.tokens }
end
if ask.lease == 0 then save() return { -1 } end
stand(ask, ask.lease)
save()
local stranger = has_strangers()
local next = -1
if first then
  next = next_expiry()
  if stranger and (PLAIN or free) then next = next < 0 and SOON or math.min(next, SOON) end
end
return { 0, next, stranger and 1 or 0 }

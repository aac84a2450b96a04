-- Gives the right to fill, unless somebody has it, or there is a value that will do, or somebody writes.
-- KEYS: 1 entry  ARGV: 1 ticket  2 ms of the lease  3 the fill of a value that will not do, or nothing
-- Returns: now and the smallest version that may be filled as 8 bytes | now, nothing and what is there
local key, ticket, lease_ms, except = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local entry, kind = read(key)
local lease = ticket .. pack(now + lease_ms)
if not entry then
  write(key, gap(lease, ZERO, ZERO, ''), now + lease_ms)
  return {now, ZERO}
end
if kind == 'V' then
  if string.sub(entry, 27, 42) ~= except or is_live(entry, 3) then return {now, '', entry} end
  set_lease(key, lease)
  return {now, string.sub(entry, 43, 50)}
end
local floor, died, last = string.sub(entry, 27, 34), string.sub(entry, 35, 42), string.sub(entry, 43)
if kind == 'W' then
  if others(entry, '') ~= '' then return {now, '', entry} end
  floor, died, last = string.sub(entry, 3, 10), ZERO, ''
elseif is_live(entry, 3) then return {now, '', entry} end
write(key, gap(lease, floor, died, last), math.max(now + lease_ms, ends(key)))
return {now, floor}

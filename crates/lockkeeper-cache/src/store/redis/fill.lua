-- Fills, if the lease of that ticket is there.
-- KEYS: 1 entry  ARGV: 1 the value as an entry without a lease  2 ms to live
-- Returns: now and 1 done | 0 the lease is gone | -1 it has ended | -2 the value is too old
local key, value, ttl_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
local ticket, version = string.sub(value, 27, 42), string.sub(value, 43, 50)
local entry, kind = read(key)
if not entry or kind == 'W' then return {now, 0} end
if kind == 'V' and string.sub(entry, 27, 42) == ticket then return {now, 1} end
if string.sub(entry, 3, 18) ~= ticket then return {now, 0} end
if number(entry, 19) <= now then return {now, -1} end
local floor = kind == 'V' and string.sub(entry, 43, 50) or string.sub(entry, 27, 34)
if less(version, floor) then
  without_lease(key, entry, kind)
  return {now, -2}
end
write(key, value, now + ttl_ms)
return {now, 1}

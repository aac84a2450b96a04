-- A writer is about to change the database.
-- KEYS: entries  ARGV: 1 writer  2 ms for which it is believed
-- Returns: now
local writer, ttl_ms = ARGV[1], tonumber(ARGV[2])
for _, key in ipairs(KEYS) do
  local entry, kind = read(key)
  local floor, before, at = ZERO, '', 0
  if kind == 'W' then floor, before, at = string.sub(entry, 3, 10), others(entry, writer), ends(key)
  elseif kind == 'L' then floor, at = string.sub(entry, 27, 34), ends(key) end
  local until_ = now + ttl_ms
  make_room(key)
  write(key, 'W\1' .. floor .. before .. writer .. pack(until_), math.max(until_, at))
end
return {now}

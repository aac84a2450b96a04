-- The database has changed.
-- KEYS: entries  ARGV: 1 the version that it has now, 8 bytes  2 ms to remember that  3 ms to keep the last value
-- Returns: now
local floor, floor_ms, keep_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
for _, key in ipairs(KEYS) do invalidate(key, floor, floor_ms, keep_ms) end
return {now}

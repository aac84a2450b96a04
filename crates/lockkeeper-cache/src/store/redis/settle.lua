-- A writer is done.
-- KEYS: entries  ARGV: 1 writer  2 the version that the database has now, 8 bytes  3 ms to remember that  4 ms to keep the last value
-- Returns: now and 1 its intent lasted at all of them | 0 it did not
local writer, floor, floor_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local held = 1
for _, key in ipairs(KEYS) do
  local entry, kind = read(key)
  if kind == 'W' then
    local all, rest = others(entry, ''), others(entry, writer)
    if #all == #rest then held = 0 end
    local raised, at = larger(floor, string.sub(entry, 3, 10)), ends(key)
    if floor ~= ZERO then at = math.max(at, now + floor_ms) end
    make_room(key)
    if rest == '' then write_gap(key, raised, ZERO, '', at)
    else write(key, 'W\1' .. raised .. rest, at) end
  else
    held = 0
    invalidate(key, floor, floor_ms, tonumber(ARGV[4]))
  end
end
return {now, held}

-- A writer has committed these values: each replaces an older one, and where there is none it is an invalidation.
-- KEYS: entries  ARGV: 1 ms to remember a version  2 ms to keep the last value; then for each key the value as an entry without
-- a lease, and ms to live
-- Returns: now and for each key 1 it is there in this version | 0 it is not
local floor_ms, keep_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
local answer = {now}
for at, key in ipairs(KEYS) do
  local value, ttl_ms = ARGV[1 + 2 * at], tonumber(ARGV[2 + 2 * at])
  local version = string.sub(value, 43, 50)
  local entry, kind = read(key)
  local there = kind == 'V' and string.sub(entry, 43, 50) or ZERO
  answer[1 + at] = 1
  if there ~= ZERO and there == version then -- it is there
  elseif there ~= ZERO and less(there, version) and struct.unpack('>I4', entry, 71) <= struct.unpack('>I4', value, 71) then
    -- When what was there was loaded, and how long that took, stays.
    write(key, string.sub(value, 1, 50) .. string.sub(entry, 51, 58) .. string.sub(value, 59, 66)
      .. string.sub(entry, 67, 70) .. string.sub(value, 71), now + ttl_ms)
  else
    invalidate(key, version, floor_ms, keep_ms)
    answer[1 + at] = 0
  end
end
return answer

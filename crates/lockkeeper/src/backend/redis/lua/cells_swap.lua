-- Writes cells if each is of the version that is expected of it, or none.
-- KEYS: 1 hash of cells, each as `version value`  ARGV: cell, version, value, and so on
-- Returns: 1 written | 0 one of them was not as expected
for at = 1, #ARGV, 3 do
  local found = redis.call('HGET', KEYS[1], ARGV[at])
  if (found and string.match(found, '^%d+') or '0') ~= ARGV[at + 1] then return 0 end
end
for at = 1, #ARGV, 3 do
  local version = string.format('%.0f', ARGV[at + 1] + 1)
  redis.call('HSET', KEYS[1], ARGV[at], version .. ' ' .. ARGV[at + 2])
end
return 1

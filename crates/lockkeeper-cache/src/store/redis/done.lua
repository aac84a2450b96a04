-- Takes deletes out of a queue, except those that were moved.
-- KEYS: 1 queue  ARGV: each ticket and key, and its time
-- Returns: now
for at = 1, #ARGV, 2 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[at])
  if score and tonumber(score) == tonumber(ARGV[at + 1]) then redis.call('ZREM', KEYS[1], ARGV[at]) end
end
return {now}

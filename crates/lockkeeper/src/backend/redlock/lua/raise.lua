-- Writes the tokens of a lock that is still ours. ARGV: the value; the first and the last token.
-- Without a value: raises the counter, whoever has the lock.
local value = ARGV[1]
if absent() then return 0 end
if value ~= '' then
  if redis.call('GET', lock) ~= value then return 0 end
  redis.call('SET', settled, ARGV[2], 'PX', math.max(redis.call('PTTL', lock), 1))
end
count_to(tonumber(ARGV[3]))
return 1

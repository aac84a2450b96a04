-- Takes the lock away from whoever is meant. ARGV: the value; why; how channels begin. Tells the
-- holder; returns the counter.
local value = ARGV[1]
remember()
if value ~= '' and redis.call('GET', lock) == value then
  local left = math.max(redis.call('PTTL', lock), 60000)
  redis.call('DEL', lock, settled)
  redis.call('SET', KEYS[8], ARGV[2], 'PX', left)
  local id, party = string.match(value, '#(%x+)#(%x+)#%d+#%d+#%d+$')
  if id then redis.call('PUBLISH', ARGV[3] .. party, id) end
  wake(ARGV[3])
end
return counter

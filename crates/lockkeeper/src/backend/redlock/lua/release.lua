-- Gives the lock back if it is ours, and leaves the queue. ARGV: the value; who waits, or nothing;
-- how channels begin, or nothing to wake nobody: whoever fails at some nodes and is about to ask again
-- would give each of them to the next in line there, who would fail at the others, and so on for ever.
leave(ARGV[2])
if ARGV[2] ~= '' and redis.call('GET', turn) == ARGV[2] then
  redis.call('DEL', turn)
  if redis.call('EXISTS', lock) == 0 then wake(ARGV[3]) end
end
if redis.call('GET', lock) ~= ARGV[1] then
  -- It may still be on its way here, on a connection that was given up.
  if ARGV[1] ~= '' then redis.call('SET', KEYS[8], '1', 'PX', 60000) end
  return 0
end
redis.call('DEL', lock, settled)
if ARGV[3] ~= '' then wake(ARGV[3]) end
return 1

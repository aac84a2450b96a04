-- The short way to release a mutex that nobody waits for.
-- ARGV: 3 how long the request may still arrive and is refused then, in ms; missing: not at all
if held_alone(KEYS[1], KEYS[2], ARGV[1]) and redis.call('EXISTS', KEYS[5], KEYS[8]) == 0 then
  redis.call('DEL', KEYS[1], KEYS[2])
  if not PLAIN then redis.call('PUBLISH', 'redisson_lock__channel:' .. braces(KEYS[1]), '0') end
  if ARGV[3] then redis.call('SET', KEYS[4], 1, 'PX', ARGV[3]) end
  return 1
end

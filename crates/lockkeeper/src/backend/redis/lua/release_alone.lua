-- The short way to release a mutex that nobody waits for.
-- ARGV: 3 the field of a mutex, or ''  4 how long the request may still arrive and is refused then, in
--       ms; missing: not at all
if ARGV[3] ~= '' and held_alone(KEYS[1], KEYS[2], ARGV[3]) and redis.call('EXISTS', KEYS[5]) == 0 then
  redis.call('DEL', KEYS[1])
  if not PLAIN then
    local braced = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
    redis.call(PUBLISH, 'redisson_lock__channel:' .. braced, '0')
  end
  if ARGV[4] then redis.call('SET', KEYS[4], '1', 'PX', ARGV[4]) end
  return 1
end

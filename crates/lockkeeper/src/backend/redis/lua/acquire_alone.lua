-- The short way to take a mutex.
-- ARGV: 3 owner  4 kind  5 permits  6 ttl in ms  7 tokens  8 waiter lease in ms, 0: no place
--       9 our client  10 number of the question
if (ARGV[4] == 'mutex' or ARGV[4] == 'fair-mutex') and is_free(1) then
  return take(1, ARGV[1], ARGV[3], ARGV[4], ARGV[6], ARGV[7], ARGV[9])
end

-- The short way to take a mutex.
-- ARGV: 3 owner, for a mutex its field  4 kind  5 permits  6 ttl in ms  7 tokens  8 waiter lease in
--       ms, 0: no place  9 our client  10 number of the question
if (ARGV[4] == 'mutex' or ARGV[4] == 'fair-mutex') and is_free(1) then
  return { 1, take(1, ARGV[3], ARGV[6], ARGV[7]), tonumber(ARGV[7]) }
end

-- Sets a value, whatever is there.
-- KEYS: 1 entry  ARGV: 1 the value as an entry without a lease  2 ms to live
-- Returns: now
write(KEYS[1], ARGV[1], now + tonumber(ARGV[2]))
return {now}

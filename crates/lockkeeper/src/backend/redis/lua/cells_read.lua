-- KEYS: 1 hash of cells  ARGV: which
-- Returns: what is in each, or nothing
return redis.call('HMGET', KEYS[1], unpack(ARGV))

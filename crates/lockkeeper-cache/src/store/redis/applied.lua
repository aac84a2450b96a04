-- The database has a change.
-- KEYS: 1 log  2 entry  ARGV: 1 where it is in the log  2 the same in 16 bytes  3 its version, 8 bytes  4 ms to live
-- Returns: now
local key, fill, version = KEYS[2], ARGV[2], ARGV[3]
-- Somebody else has said so before.
if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then return {now} end
local entry, kind = read(key)
if kind == 'V' and string.sub(entry, 27, 42) == fill then
  redis.call('SETRANGE', key, 50, version) -- behind the server and 42 bytes of the entry
  set_lease(key, NONE) -- a load that began before may be older, and without a version nobody would tell
  redis.call('PEXPIRE', key, ARGV[4])
elseif kind == 'V' and string.sub(entry, 43, 50) == string.rep('\255', 8) then
  -- A later change of the key waits.
  return {now}
else
  -- The entry was lost, and loaded again before the database had this.
  invalidate(key, ZERO, 0, 0)
end
return {now}

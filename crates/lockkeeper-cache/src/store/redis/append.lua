-- Appends a change, and makes it the entry.
-- KEYS: 1 log  2 entry  ARGV: 1 no more than so many  2 the name of the entry  3 the value as an entry
-- Returns: now, and where it is in the log | now: there are as many as there may be
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[1]) then return {now} end
local id = redis.call('XADD', KEYS[1], '*', 'key', ARGV[2], 'value', ARGV[3])
local ms, seq = string.match(id, '^(%d+)-(%d+)$')
local fill = pack(tonumber(ms)) .. pack(tonumber(seq))
-- Without an end: it must not be loaded again before the database has it.
redis.call('SET', KEYS[2], BY .. string.sub(ARGV[3], 1, 26) .. fill .. string.sub(ARGV[3], 43))
return {now, id}

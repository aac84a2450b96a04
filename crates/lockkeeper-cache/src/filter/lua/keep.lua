-- Goes on building: adds to what is uploaded, if anything is given.
-- ARGV: 1 builder  2 ms until he is taken for dead  3 bytes that were uploaded before  4 more bytes
-- Returns: 1 | 0 what was built is gone, or another server has taken it in
local builder, lease, before, more = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

if not ours or redis.call('HGET', head, 'builder') ~= builder then return 0 end
if redis.call('EXISTS', slots[redis.call('HGET', head, 'built')]) == 0 then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', head, 'until', string.format('%.0f', now + lease))

if more == '' then return 1 end
local length = redis.call('STRLEN', upload)
-- Sent a second time, because the first answer was lost.
if length == before + #more then return 1 end
if length ~= before then return 0 end
redis.call('APPEND', upload, more)
return 1

-- Saves the position of a follower, if it has the record.
-- KEYS: 1 record  ARGV: 1 ticket  2 position
-- Returns: now and 1 it is saved | 0 another has it, or it was claimed at another server
local ticket, by = unpack(redis.call('HMGET', KEYS[1], 'ticket', 'by'))
if ticket ~= ARGV[1] or by ~= BY then return {now, 0} end
redis.call('HSET', KEYS[1], 'position', ARGV[2], 'seen', now)
return {now, 1}

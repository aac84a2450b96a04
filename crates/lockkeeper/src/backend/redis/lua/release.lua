-- Gives up whatever the request has: a hold or a place in the queue. Harmless when repeated.
-- ARGV: as in release_alone.lua
-- Returns: 1 it was a hold | 0 it was not
local fault = load()
if fault then return fault end
local mine, at = find(state.h)
if mine then
  table.remove(state.h, at)
  hide(mine)
end
local place = not mine and waiter(id)
if place then leave(id, place.kind) end
local _, gone = find(state.e)
if gone then table.remove(state.e, gone) end
-- The request itself may still be on its way, on a connection that was given up.
if ARGV[4] then redis.call('SET', late_key, 1, 'PX', ARGV[4]) end
save()
return mine and 1 or 0

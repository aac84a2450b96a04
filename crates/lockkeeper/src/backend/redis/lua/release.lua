-- Gives up whatever the request has: a hold or a place in the queue. Harmless when repeated.
-- Returns: 1 it was a hold | 0 it was not
local fault = load()
if fault then return fault end
local mine, at = find(state.h)
if mine then
  table.remove(state.h, at)
  remove(mine)
end
local _, place = find(state.q)
if place then table.remove(state.q, place) end
local _, gone = find(state.e)
if gone then table.remove(state.e, gone) end
-- The request itself may still be on its way, on a connection that was given up.
local late = tonumber(ARGV[3] or 0)
if late > 0 then state.e[#state.e + 1] = { id = id, reason = '', exp = now + late, over = true } end
save()
return mine and 1 or 0

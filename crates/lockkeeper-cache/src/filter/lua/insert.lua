-- Sets bits in the filter that is used and in the one that is being built. Whichever server has taken them in:
-- a bit too many does no harm, and who calls may be the one who has not heard yet which server this is.
-- ARGV: 1 the stamp of the head that the caller knows  2 how many of the positions are for slot a
--       3.. the positions for slot a, then those for slot b
-- Returns: 'ok'; or, when the head has changed, the head as it is and nothing was done
local stamp, of_a = ARGV[1], tonumber(ARGV[2])
local first = 3

local known = redis.call('HMGET', head, 'stamp', 'used', 'built', 'a', 'b')
for at = 1, 5 do known[at] = known[at] or '' end
if known[1] ~= stamp then return known end

-- One that was evicted stays away: made anew here it would never be whole, and only take memory.
local function set(slot, from, to)
  if from > to or redis.call('EXISTS', slot) == 0 then return end
  for at = from, to do redis.call('SETBIT', slot, ARGV[at], 1) end
end
set(slots.a, first, first + of_a - 1)
set(slots.b, first + of_a, #ARGV)
return 'ok'

-- Lets the lease end `ttl` from now.
-- ARGV: 3 ttl in ms  4 number of the renewal: one that comes after a later one is ignored
-- Returns: {1} | {0, reason of the eviction or ''} not ours any more
local fault = load()
if fault then return fault end
local mine = find(state.h)
local number = tonumber(ARGV[4])
if mine and number > (mine.k or 0) then
  mine.k = number
  extend(mine, tonumber(ARGV[3]))
end
local lost = why_lost()
save()
return mine and { 1 } or lost

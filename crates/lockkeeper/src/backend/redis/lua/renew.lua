-- Lets the lease end `ttl` from now.
-- ARGV: 3 ttl in ms
-- Returns: {1} | {0, reason of the eviction or ''} not ours any more
local fault = load()
if fault then return fault end
local mine = find(state.h)
if mine then extend(mine, tonumber(ARGV[3])) end
local lost = why_lost()
save()
return mine and { 1 } or lost

-- Looks whether a hold is still ours, without renewing it.
-- Returns: {1} | {0, reason of the eviction or ''}
local fault = load()
if fault then return fault end
local mine, lost = find(state.h), why_lost()
save()
return mine and { 1 } or lost

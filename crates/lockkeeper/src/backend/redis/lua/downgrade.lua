-- Turns a hold for writing into one for reading, under the same token.
-- Returns: {1} | {0, reason of the eviction or ''} not ours any more
local fault = load()
if fault then return fault end
local mine = find(state.h)
local lost = why_lost()
if mine and is_write(mine.kind) then
  mine.kind = mine.kind == 'write' and 'read' or 'fair-read'
  show_downgrade(mine)
  freed = freed or 'read'
end
save()
return mine and { 1 } or lost

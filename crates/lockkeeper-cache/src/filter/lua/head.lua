-- Goes before every step: what the keys are called, and whether this server has taken in what is under them.
-- KEYS: 1 head  2 slot a  3 slot b  4 upload (same hash slot)
-- ARGV, behind those of the step: the server that this is, 8 bytes
local head, slots, upload = KEYS[1], { a = KEYS[2], b = KEYS[3] }, KEYS[4]
local by = table.remove(ARGV)
-- Another one may have taken in less than was inserted.
local ours = redis.call('HGET', head, 'by') == by


-- A stamp that no head had before. A step that comes a second time, and late, brings its old one, and somebody may still
-- know the head that had it.
local function stamped(stamp)
  local time = redis.call('TIME')
  return stamp .. ':' .. time[1] .. ':' .. time[2]
end

-- Goes before every step: what the keys are called, and whether this server has taken in what is under them.
-- KEYS: 1 head  2 slot a  3 slot b  4 upload (same hash slot)
-- ARGV, behind those of the step: the server that this is, 8 bytes
local head, slots, upload = KEYS[1], { a = KEYS[2], b = KEYS[3] }, KEYS[4]
local by = table.remove(ARGV)
-- Another one may have taken in less than was inserted.
local ours = redis.call('HGET', head, 'by') == by


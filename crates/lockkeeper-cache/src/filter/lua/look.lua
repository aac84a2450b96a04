-- Says of keys whether all their bits are set in the filter that is used.
-- ARGV: 1 the stamp of the head that the caller knows  2 bits of a key  3.. their positions
-- Returns: a digit for each key, 1 maybe | 0 absent; '' if nothing is known; or, when the head has
--          changed, the head as it is: stamp, used, built, shape of a, shape of b
local stamp, width = ARGV[1], tonumber(ARGV[2])
local first = 3

if not ours then return '' end
local known = redis.call('HMGET', head, 'stamp', 'used', 'built', 'a', 'b')
for at = 1, 5 do known[at] = known[at] or '' end
if known[1] ~= stamp then return known end

local used = known[2]
if used == '' then return '' end
-- One that was evicted would say of every key that it is absent.
local bits = tonumber(string.match(used == 'a' and known[4] or known[5], '^%d+'))
if redis.call('STRLEN', slots[used]) ~= bits / 8 + 1 then return '' end

local said = {}
for key = first, #ARGV, width do
  local maybe = '1'
  for at = key, key + width - 1 do
    if redis.call('GETBIT', slots[used], ARGV[at]) == 0 then
      maybe = '0'
      break
    end
  end
  said[#said + 1] = maybe
end
return table.concat(said)

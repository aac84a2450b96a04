-- Goes before every step: what time it is, and how entries are read (entry/codec.rs has the places).
local NONE = string.rep('\0', 24) -- a lease that nobody has
local ZERO = string.rep('\0', 8)
local BY = table.remove(ARGV) -- the server that this is, 8 bytes; goes before every entry
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function pack(number) return struct.pack('>I8', number) end
local function number(bytes, at) return (struct.unpack('>I8', bytes, at)) end

-- Whether one version is smaller. Numbers here have 53 bits, and text is compared by the locale.
local function less(one, other)
  for at = 1, 8 do
    local a, b = string.byte(one, at), string.byte(other, at)
    if a ~= b then return a < b end
  end
  return false
end
local function larger(one, other) return less(one, other) and other or one end

-- The entry and what kind it is: V, L or W. What is not an entry is as good as nothing, and so is what another
-- server has written: it may have been taken away there since.
local SIZES = {V = 75, L = 42, W = 10}
local function read(key)
  local stored = redis.call('GET', key)
  local entry = stored and string.sub(stored, 1, 8) == BY and string.sub(stored, 9)
  local kind = entry and string.sub(entry, 1, 1)
  local size = kind and SIZES[kind]
  if not size or #entry < size or string.byte(entry, 2) ~= 1 then return nil end
  if kind == 'W' and (#entry - size) % 24 ~= 0 then return nil end
  return entry, kind
end

local function ends(key) -- when the server forgets it; 0 if there is nothing
  local left = redis.call('PTTL', key)
  if left == -1 then return now + 86400000 end
  return left > 0 and now + left or 0
end
local function write(key, entry, at) redis.call('SET', key, BY .. entry, 'PX', math.max(1, at - now)) end

-- A server that is out of memory refuses a script's first write if it may need some, and no later one. What is said of writes
-- must not be lost for that: it is small, and ends soon.
local function make_room(key) redis.call('DEL', key) end

local function set_lease(key, lease) redis.call('SETRANGE', key, 10, lease) end -- in a value, which stays

local function is_live(lease, at) -- a ticket and when it ends, from there on
  return string.sub(lease, at, at + 15) ~= string.sub(NONE, 1, 16) and number(lease, at + 16) > now
end
local function gap(lease, floor, died, last) return 'L\1' .. lease .. floor .. died .. last end

-- A gap that nobody has to do with any more is nothing.
local function write_gap(key, floor, died, last, at)
  if floor == ZERO and last == '' then redis.call('DEL', key)
  else write(key, gap(NONE, floor, died, last), at) end
end

-- The writers that are still believed, except one.
local function others(entry, except)
  local found = {}
  for at = 11, #entry, 24 do
    if is_live(entry, at) and string.sub(entry, at, at + 15) ~= except then
      found[#found + 1] = string.sub(entry, at, at + 23)
    end
  end
  return table.concat(found)
end

local function without_lease(key, entry, kind)
  if kind == 'L' then write_gap(key, string.sub(entry, 27, 34), string.sub(entry, 35, 42), string.sub(entry, 43), ends(key))
  else set_lease(key, NONE) end
end

-- The short way for the common case: one client has, or wants, a mutex that nobody else has to do
-- with. Needs no model; whatever is not simple is left to it. Put before the scripts that take, renew
-- and release, after `local PLAIN = true` or `false`.
--
-- A lock at `at` is KEYS at: 1 lock  2 our state  3 token counter  4 left by this request if it was
-- given up  5 Redisson's fair queue. What belongs to it is more than one key, so all are looked at.
if redis.replicate_commands then redis.replicate_commands() end -- before Redis 7: TIME, then writes
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local WAITER_LEASE = 5000 -- a place in the queue ends so long after the waiter asked last, in ms

-- How long our state must be kept for a hold that ends in `ttl`: waiters may outlast it.
local function kept(ttl) return math.max(tonumber(ttl), WAITER_LEASE) + 1000 end

-- Redisson's rule: braces only around a name that has none.
local function braces(raw) return string.find(raw, '{', 1, true) and raw or '{' .. raw .. '}' end

local function is_free(at)
  return redis.call('EXISTS', KEYS[at], KEYS[at + 1], KEYS[at + 3], KEYS[at + 4]) == 0
end

-- Takes a free lock. What came as text stays text, and our state is written out where no character
-- needs care: turning numbers and tables into text takes longer than the commands. Numbers that may
-- need more digits than cjson keeps are text in it.
local function take(at, id, owner, kind, ttl, tokens, party)
  local first = redis.call('INCRBY', KEYS[at + 2], tokens) - tokens + 1
  if PLAIN then
    redis.call('SET', KEYS[at], id, 'PX', ttl)
  else
    redis.call('HSET', KEYS[at], owner, '1')
    redis.call('PEXPIRE', KEYS[at], ttl)
  end
  if string.find(owner, '[^%w%-_.:]') then owner = string.sub(cjson.encode(owner), 2, -2) end
  local state = '{"h":[{"id":"' .. id .. '","owner":"' .. owner .. '","kind":"' .. kind
    .. '","of":1,"ttl":' .. ttl .. ',"party":"' .. party .. '","tokens":' .. tokens
    .. ',"first":"' .. string.format('%d', first) .. '","since":' .. now .. ',"exp":' .. now + ttl
    .. '}],"e":{},"n":0,"w":0,"r":0,"f":0' .. (PLAIN and ',"v":"' .. id .. '"}' or '}')
  redis.call('SET', KEYS[at + 1], state, 'PX', kept(ttl))
  return { 1, first, tonumber(tokens) }
end

-- Our state as it is stored, if there is just this one hold, on a mutex, and the lock says so too: no
-- other request is named in it. Quotes inside of text are escaped, so they cannot look like this.
local function held_alone(lock, state_key, id)
  local stored = redis.call('GET', state_key)
  if not stored then return end
  local at = string.find(stored, '"id":"', 1, true)
  if not at or string.sub(stored, at + 6, at + 37) ~= id then return end
  if string.find(stored, '"id":"', at + 38, true) then return end
  if not string.find(stored, '"kind":"mutex"', 1, true)
    and not string.find(stored, '"kind":"fair-mutex"', 1, true) then return end
  if PLAIN then return redis.pcall('GET', lock) == id and stored end
  local fields = redis.pcall('HGETALL', lock)
  if #fields ~= 2 or fields[2] ~= '1' then return end
  return string.find(stored, '"owner":"' .. fields[1] .. '"', 1, true) and stored
end

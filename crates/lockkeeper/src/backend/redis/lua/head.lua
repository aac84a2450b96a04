-- What every step of the model is given, and what kinds are.
--
-- KEYS: 1 lock  2 our state  3 token counter  4 left by this request if it was given up
--       5 Redisson's fair queue (list)  6 its time-outs (zset)  7 permits (zset)
--       8 our queue (zset)  9 our waiters (hash)
-- ARGV: 1 request id (32 hex digits)  2 channel prefix of our clients, then those of the script
local raw, state_key, token_key, late_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fair_key, fair_timeouts, permits_key = KEYS[5], KEYS[6], KEYS[7]
local queue_key, waiters_key = KEYS[8], KEYS[9]
local id, wake_prefix = ARGV[1], ARGV[2]
local DAY = 86400000
local WAITER_LEASE = 5000 -- a place in the queue ends so long after the waiter asked last, in ms

if redis.replicate_commands then redis.replicate_commands() end -- before Redis 7: TIME, then writes
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Holders of ours, evicted, hand-overs in a row, number of the last waiter, how many waiters are unfair
-- readers, how many are readers at all, and how many want a fair mutex. And `latch` while it is one, `made` for a
-- semaphore that we made, `y` until when others have their chance, `v` our value in dialect plain.
local state = { h = {}, e = {}, n = 0, w = 0, r = 0, s = 0, f = 0 }
local stored       -- whether it was stored
local foreign = {} -- holders that are not ours: { kind, owner, exp }
local used_as      -- what a string under the name is: 'latch', 'semaphore'
local freed        -- 'lock', 'read', 'write', 'permit' when a hold was let go
local moved        -- whether somebody has left the queue

local function is_read(kind) return kind == 'read' or kind == 'fair-read' end
local function is_write(kind) return kind == 'write' or kind == 'fair-write' end
local function is_permit(kind) return kind == 'permit' end
local function family(kind)
  if is_permit(kind) then return 'semaphore' end
  if is_read(kind) or is_write(kind) then return 'read-write lock' end
  return 'mutex'
end

-- The holder whom the field or value of a mutex speaks of, see take.lua. Nobody has had a token since.
local function parse(text, left)
  local owner, of, party, ttl, tokens, since =
    string.match(text, '^(.*)#(%x+)#(%x+)#(%d+)#(%d+)#(%d+)$')
  if not owner or #of ~= 32 or left < 0 then return end
  local last = redis.call('GET', token_key) or tokens
  return {
    id = of, owner = owner, kind = 'mutex', of = 1, ttl = tonumber(ttl), party = party,
    tokens = tonumber(tokens), first = string.format('%.0f', last - tokens + 1),
    since = tonumber(since), exp = now + left, field = text,
  }
end

-- Whether its field says all there is to say about our only holder.
local function is_simple(holder)
  return holder and #state.h == 1 and holder.field and not holder.waited and not holder.k
end

-- Tells a client of ours about one of its requests.
local function tell(party, of, word)
  return redis.call('PUBLISH', wake_prefix .. party, word and of .. ' ' .. word or of)
end

-- Tells those who wait for a latch, Redisson's clients and ours: 0 it is open, 1 it is closed.
local function tell_latch(message)
  redis.call(PUBLISH, 'redisson_countdownlatch__channel__{' .. raw .. '}', message)
end

local function lasting(list)
  local left = {}
  for _, item in ipairs(list) do
    if item.exp > now then left[#left + 1] = item end
  end
  return left
end

-- Holders of ours for which `there(holder)`; the others are told.
local function keep_ours(there, remove)
  local held = {}
  for _, holder in ipairs(state.h) do
    local present = there(holder)
    if present and holder.exp > now then
      held[#held + 1] = holder
    else
      if present then remove(holder) end
      tell(holder.party, holder.id)
    end
  end
  state.h = held
end

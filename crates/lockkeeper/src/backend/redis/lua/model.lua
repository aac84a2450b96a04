-- The model of one name (model.rs) over the layout of Redisson, put before every script that changes
-- a lock. Our own state (holders of ours, the queue, evictions) is JSON in one key; what Redisson reads
-- and writes is kept beside it, and what Redisson has done since is found out by `load`.
--
-- KEYS: 1 lock  2 our state  3 token counter  4 permits (zset)  5 lock channel  6 read-write channel
--       7 semaphore channel  8 latch channel  9 left by this request if it was given up
-- ARGV: 1 request id (32 hex digits)  2 channel prefix of our clients, then those of the script
local raw, state_key, token_key, permits_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lock_channel, rw_channel, semaphore_channel = KEYS[5], KEYS[6], KEYS[7]
local id, wake_prefix = ARGV[1], ARGV[2]
local DAY = 86400000
local PASSES = 8 -- so often a lock is handed over before clients of Redisson get their chance

if redis.replicate_commands then redis.replicate_commands() end -- before Redis 7: TIME, then writes
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local state = { h = {}, q = {}, e = {}, n = 0 } -- holders, queue, evicted, hand-overs in a row
local foreign = {}                              -- holders that are not ours: { kind, expires }
local used_as                                   -- what a string under the name is
local freed                                     -- 'lock', 'read', 'write' when a hold was let go

local function is_read(kind) return kind == 'read' or kind == 'fair-read' end
local function is_write(kind) return kind == 'write' or kind == 'fair-write' end
local function is_permit(kind) return kind == 'permit' end
local function family(kind)
  if is_permit(kind) then return 'semaphore' end
  if is_read(kind) or is_write(kind) then return 'read-write lock' end
  return 'mutex'
end

-- The key that tells Redisson that a reader lives; same slot as the lock.
local function reader_key(owner, count)
  local tail = ':' .. owner .. ':rwlock_timeout:' .. count
  if string.find(raw, '{', 1, true) then return raw .. tail end
  return '{' .. raw .. '}' .. tail
end

-- Permits go by 16 raw bytes.
local function permit(holder)
  return (string.gsub(holder.id, '%x%x', function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

local function field(holder)
  if is_write(holder.kind) then return holder.owner .. ':write' end
  return holder.owner
end

-- What is left of the hash when somebody has left it.
local function sweep()
  local mode = redis.call('HGET', raw, 'mode')
  if not mode then return end
  if redis.call('HLEN', raw) == 1 then
    redis.call('DEL', raw)
  elseif mode == 'write' then
    for _, name in ipairs(redis.call('HKEYS', raw)) do
      if string.sub(name, -6) == ':write' then return end
    end
    redis.call('HSET', raw, 'mode', 'read')
  end
end

-- Takes a holder of ours out of what Redisson sees.
local function remove(holder)
  if is_permit(holder.kind) then
    if redis.call('ZREM', permits_key, permit(holder)) == 1 then redis.call('INCR', raw) end
    freed = 'permit'
    return
  end
  -- Counted: an owner may read under its own mutex, in the same field.
  local left = redis.call('HINCRBY', raw, field(holder), -1)
  if left <= 0 then redis.call('HDEL', raw, field(holder)) end
  if is_read(holder.kind) then
    redis.call('DEL', reader_key(holder.owner, left + 1))
    freed = freed or 'read'
  else
    freed = is_write(holder.kind) and 'write' or 'lock'
  end
  sweep()
end

-- Whether a reader of Redisson lives.
local function reads(owner, count)
  for at = 1, math.min(tonumber(count) or 0, 1000) do
    if redis.call('EXISTS', reader_key(owner, at)) == 1 then return true end
  end
  return false
end

-- Holders of ours that are still there; the others are told.
local function keep_ours(fields)
  local held, ours = {}, {}
  for _, holder in ipairs(state.h) do
    local name = is_permit(holder.kind) and permit(holder) or field(holder)
    local there = fields[name]
    if is_permit(holder.kind) then there = redis.call('ZSCORE', permits_key, name) end
    if there and holder.exp > now then
      held[#held + 1] = holder
      ours[name] = true
    else
      if there then
        remove(holder)
        if not is_permit(holder.kind) then fields[name] = redis.call('HGET', raw, name) or nil end
      end
      redis.call('PUBLISH', wake_prefix .. holder.party, holder.id)
    end
  end
  state.h = held
  return ours
end

local function lasting(list)
  local left = {}
  for _, item in ipairs(list) do
    if item.exp > now then left[#left + 1] = item end
  end
  return left
end

-- Holders that are not ours.
local function find_foreign(fields, ours)
  local left = redis.call('PTTL', raw)
  if left < 0 then left = 3600000 end -- somebody's lock without a TTL: held until it is evicted
  for name, count in pairs(fields) do
    if name ~= 'mode' and not ours[name] then
      local kind = 'mutex'
      if fields.mode then
        kind = string.sub(name, -6) == ':write' and 'write' or 'read'
      end
      local known = fields.mode == 'read' or fields.mode == 'write'
      if kind == 'read' and known and not reads(name, count) then
        redis.call('HDEL', raw, name) -- it died
        sweep()
      else
        foreign[#foreign + 1] = { kind = kind, owner = name, exp = now + left }
      end
    end
  end
end

local function find_permits(ours)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', permits_key, 0, now)) do
    redis.call('ZREM', permits_key, gone)
    redis.call('INCR', raw)
  end
  local all = redis.call('ZRANGE', permits_key, 0, -1, 'WITHSCORES')
  for at = 1, #all, 2 do
    if not ours[all[at]] then
      foreign[#foreign + 1] =
        { kind = 'permit', owner = 'a permit', exp = tonumber(all[at + 1]), member = all[at] }
    end
  end
end

-- Reads our state, and finds out what became of it.
local function load()
  local stored = redis.call('GET', state_key)
  if stored then state = cjson.decode(stored) end
  local type = redis.call('TYPE', raw).ok
  if type ~= 'none' and type ~= 'hash' and type ~= 'string' then
    return redis.error_reply('WRONGTYPE the key holds a ' .. type .. ', which is not a lock')
  end
  local fields = {}
  if type == 'hash' then
    local all = redis.call('HGETALL', raw)
    for at = 1, #all, 2 do fields[all[at]] = all[at + 1] end
  end
  local ours = keep_ours(fields)
  state.q, state.e = lasting(state.q), lasting(state.e)
  if type == 'hash' then find_foreign(fields, ours) end
  if type == 'string' then
    find_permits(ours)
    if state.made and #state.h == 0 and #foreign == 0 and #state.q == 0
      and redis.call('PUBLISH', semaphore_channel, redis.call('GET', raw) or 0) == 0 then
      redis.call('DEL', raw, permits_key)
      state.made, freed, type = nil, nil, 'none'
    end
  end
  if type == 'string' then
    if state.latch then used_as = 'latch' elseif not state.made then used_as = 'semaphore' end
  elseif state.latch then
    state.latch = nil -- it has opened, or gone
  end
end

-- Whether the name is a closed latch, ours or one of Redisson's, which looks like a semaphore of which
-- no permit is taken.
local function is_latch()
  return used_as ~= nil and #foreign == 0 and #state.h == 0 and #state.q == 0
end

local function compatible(kind, owner, of)
  local holders = #state.h + #foreign
  if is_permit(kind) then return holders < of end
  if not is_read(kind) then return holders == 0 end
  for _, holder in ipairs(state.h) do
    if not is_read(holder.kind) and holder.owner ~= owner then return false end
  end
  for _, holder in ipairs(foreign) do
    if not is_read(holder.kind) then return false end
  end
  return true
end

-- Lets the hash live as long as the longest hold in it, ours or not.
local function keep_alive()
  local last = 0
  for _, holder in ipairs(state.h) do last = math.max(last, holder.exp) end
  for _, holder in ipairs(foreign) do last = math.max(last, holder.exp) end
  if last > now then redis.call('PEXPIRE', raw, last - now) end
end

-- The keys that prove to Redisson that an owner reads live as long as its longest reading.
local function keep_reading(owner)
  local last = 0
  for _, holder in ipairs(state.h) do
    if is_read(holder.kind) and holder.owner == owner then last = math.max(last, holder.exp) end
  end
  if last <= now then return end
  for at = 1, tonumber(redis.call('HGET', raw, owner) or 0) do
    redis.call('SET', reader_key(owner, at), 1, 'PX', last - now)
  end
end

-- How long the keys of a semaphore that we made stay: a day longer than the longest permit.
local function keep_permits()
  if not state.made then return end
  local last = now
  for _, holder in ipairs(state.h) do last = math.max(last, holder.exp) end
  redis.call('PEXPIRE', raw, last - now + DAY)
  redis.call('PEXPIRE', permits_key, last - now + DAY)
end

-- Grants: into our state, and into what Redisson sees. `lease` may be shorter than the full time.
local function grant(ask, lease)
  local first, tokens = nil, ask.tokens
  for _, holder in ipairs(state.h) do
    if is_read(ask.kind) and holder.owner == ask.owner then
      first, tokens = holder.first, holder.tokens
    end
  end
  if not first then
    first = redis.call('INCRBY', token_key, ask.tokens) - ask.tokens + 1
  end
  local holder = {
    id = ask.id, owner = ask.owner, kind = ask.kind, ttl = ask.ttl, of = ask.of, party = ask.party,
    tokens = tokens, first = first, since = now, exp = now + lease,
  }
  state.h[#state.h + 1] = holder
  if is_permit(ask.kind) then
    if redis.call('EXISTS', raw) == 0 then state.made = true end
    local total = tonumber(redis.call('GET', raw) or 0) + redis.call('ZCARD', permits_key)
    if total < ask.of then redis.call('INCRBY', raw, ask.of - total) end
    redis.call('DECR', raw)
    redis.call('ZADD', permits_key, holder.exp, permit(holder))
    keep_permits()
    return holder
  end
  if is_read(ask.kind) then
    redis.call('HSETNX', raw, 'mode', 'read')
    redis.call('HINCRBY', raw, ask.owner, 1)
    keep_reading(ask.owner)
  else
    redis.call('HINCRBY', raw, field(holder), 1)
    if is_write(ask.kind) then redis.call('HSET', raw, 'mode', 'write') end
  end
  if redis.call('PTTL', raw) < lease then redis.call('PEXPIRE', raw, lease) end
  return holder
end

-- Serves the queue as far as it can be served.
local function hand_over()
  local passed, left = false, {}
  for _, waiter in ipairs(state.q) do
    local free = compatible(waiter.kind, waiter.owner, waiter.of)
    if free and (not passed or waiter.kind == 'read') then
      if freed == 'lock' and state.n >= PASSES and redis.call('PUBLISH', lock_channel, 0) > 0 then
        -- Clients of Redisson wait as well: whoever is quicker now.
        state.n = 0
        freed, passed = nil, true
        left[#left + 1] = waiter
      else
        grant(waiter, math.min(waiter.ttl, waiter.lease))
        if freed == 'lock' then state.n = state.n + 1 end
      end
      redis.call('PUBLISH', wake_prefix .. waiter.party, waiter.id)
    else
      passed = true
      left[#left + 1] = waiter
    end
  end
  state.q = left
end

-- Tells clients of Redisson what was freed and is still free.
local function announce()
  local free = #state.h == 0 and #foreign == 0
  if freed == 'lock' and free then redis.call('PUBLISH', lock_channel, 0) end
  if freed == 'write' then redis.call('PUBLISH', rw_channel, 1) end
  if freed == 'read' and free then redis.call('PUBLISH', rw_channel, 0) end
  if freed == 'permit' then
    -- A client of Redisson that waits has nothing else to wake it: the key stays while one listens.
    local heard = redis.call('PUBLISH', semaphore_channel, redis.call('GET', raw) or 0)
    if state.made and free and #state.q == 0 and heard == 0 then
      redis.call('DEL', raw, permits_key)
      state.made = nil
    end
  end
end

-- Serves the queue, stores our state for as long as anything in it lasts, and tells the others.
local function save()
  hand_over()
  announce()
  local last = 0
  for _, list in ipairs({ state.h, state.q, state.e }) do
    for _, item in ipairs(list) do last = math.max(last, item.exp) end
  end
  if state.made then last = math.max(last, now + math.max(redis.call('PTTL', raw), 0)) end
  if state.latch then last = math.max(last, now + math.max(redis.call('PTTL', raw), 0)) end
  if last == 0 then
    redis.call('DEL', state_key)
  else
    redis.call('SET', state_key, cjson.encode(state), 'PX', last - now + 1000)
  end
end

local function find(list)
  for at, item in ipairs(list) do
    if item.id == id then return item, at end
  end
end

-- When something expires next, in ms from now; -1: nothing does.
local function next_expiry()
  local next
  for _, list in ipairs({ state.h, state.q, foreign }) do
    for _, item in ipairs(list) do next = math.min(next or item.exp, item.exp) end
  end
  return next and math.max(next - now, 0) or -1
end

-- Lets the lease of a holder of ours end `ttl` from now.
local function extend(holder, ttl)
  holder.exp = now + ttl
  if is_permit(holder.kind) then
    redis.call('ZADD', permits_key, holder.exp, permit(holder))
    keep_permits()
  else
    if is_read(holder.kind) then keep_reading(holder.owner) end
    keep_alive()
  end
end

-- Why a hold is not ours any more.
local function why_lost()
  local gone = find(state.e)
  return { 0, gone and gone.reason or '' }
end

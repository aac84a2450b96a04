-- Dialect redisson: what Redisson's clients see of a lock, and what they did to it.

local braced = string.find(raw, '{', 1, true) and raw or '{' .. raw .. '}'
local lock_channel = 'redisson_lock__channel:' .. braced
local rw_channel = 'redisson_rwlock:' .. braced
local semaphore_channel = 'redisson_sc:' .. braced
local PASSES = 8          -- so often a lock is handed over before Redisson's clients get their chance
local CHANCE = 20         -- for so long, in ms
local FAIR_WAIT = 300000  -- what Redisson takes off every waiter's time-out when one is served

-- The key that tells Redisson that a reader lives; same slot as the lock.
local function reader_key(owner, count) return braced .. ':' .. owner .. ':rwlock_timeout:' .. count end

-- Tells who waits for a read-write lock: 1 wakes all of a client's threads, but none that is just
-- asking; 0 wakes one, now or when it waits next. A few more of these, because those whom the 1 has
-- woken in vain may use one up.
local function tell_readers_and_writers(message)
  local heard = redis.call(PUBLISH, rw_channel, message)
  for _ = 1, message == 1 and heard > 0 and 4 or 0 do redis.call(PUBLISH, rw_channel, 0) end
  return heard
end

-- Permits go by 16 raw bytes.
local function permit(holder)
  return (string.gsub(holder.id, '%x%x', function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

local function field(holder)
  if is_write(holder.kind) then return holder.owner .. ':write' end
  return holder.field or holder.owner
end

local has_mode = false -- whether the hash is, or has become, one of a read-write lock

-- What is left of the hash when somebody has left it.
local function sweep()
  local mode = has_mode and redis.call('HGET', raw, 'mode')
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

-- The keys that prove to Redisson that an owner reads live as long as its longest reading.
local function keep_reading(owner)
  local last = 0
  for _, holder in ipairs(state.h) do
    if is_read(holder.kind) and holder.owner == owner then last = math.max(last, holder.exp) end
  end
  for at = 1, tonumber(redis.call('HGET', raw, owner) or 0) do
    if last > now then
      redis.call('SET', reader_key(owner, at), 1, 'PX', last - now)
    else
      redis.call('DEL', reader_key(owner, at)) -- it does not read any more
    end
  end
end

-- Takes a holder of ours out of what Redisson sees.
local function hide(holder)
  if is_permit(holder.kind) then
    if redis.call('ZREM', permits_key, permit(holder)) == 1 then redis.call('INCR', raw) end
    freed = 'permit'
    return
  end
  if not is_read(holder.kind) then
    redis.call('HDEL', raw, field(holder))
    sweep()
    freed = is_write(holder.kind) and 'write' or 'lock'
    return
  end
  -- Counted: an owner may read more than once.
  local left = redis.call('HINCRBY', raw, field(holder), -1)
  if left <= 0 then redis.call('HDEL', raw, field(holder)) end
  redis.call('DEL', reader_key(holder.owner, left + 1))
  if left > 0 then keep_reading(holder.owner) end
  freed = freed or 'read'
  sweep()
end

-- Whether a reader of Redisson lives.
local function reads(owner, count)
  for at = 1, math.min(tonumber(count) or 0, 1000) do
    if redis.call('EXISTS', reader_key(owner, at)) == 1 then return true end
  end
  return false
end

-- Holders that are not ours.
local function find_foreign(fields, left)
  for _, holder in ipairs(state.h) do fields[field(holder)] = nil end
  if left < 0 then left = math.huge end -- somebody's lock without a TTL: held until it is evicted
  for name, count in pairs(fields) do
    if name ~= 'mode' then
      local kind = 'mutex'
      if fields.mode then
        kind = string.sub(name, -6) == ':write' and 'write' or 'read'
      end
      local known = fields.mode == 'read' or fields.mode == 'write'
      local is_owner = string.find(name, ':%d+$') and tonumber(count)
      if kind == 'read' and known and is_owner and not reads(name, count) then
        redis.call('HDEL', raw, name) -- it died
        sweep()
      else
        foreign[#foreign + 1] = { kind = kind, owner = name, exp = now + left }
      end
    end
  end
end

local function find_permits()
  local ours = {}
  for _, holder in ipairs(state.h) do ours[permit(holder)] = true end
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', permits_key, 0, now)) do
    redis.call('ZREM', permits_key, gone)
    redis.call('INCR', raw)
    freed = freed or 'permit'
  end
  local all = redis.call('ZRANGE', permits_key, 0, -1, 'WITHSCORES')
  for at = 1, #all, 2 do
    if not ours[all[at]] then
      foreign[#foreign + 1] =
        { kind = 'permit', owner = 'a permit', exp = tonumber(all[at + 1]), member = all[at] }
    end
  end
end

-- Tells clients of Redisson how many permits are free. A semaphore that we made and nobody uses is
-- taken away, unless one of them listens: it has nothing else to wake it. Whether it was.
local function tell_permits()
  local heard = redis.call(PUBLISH, semaphore_channel, redis.call('GET', raw) or 0)
  local used = #state.h > 0 or #foreign > 0 or redis.call('ZCARD', queue_key) > 0
  if not state.made or used or heard > 0 then return false end
  redis.call('DEL', raw, permits_key)
  state.made, freed = nil, nil
  return true
end

-- Finds out what others did.
local function look(type)
  if state.v then return redis.error_reply('WRONGTYPE the name is in use in dialect plain') end
  if type ~= 'none' and type ~= 'hash' and type ~= 'string' then
    return redis.error_reply('WRONGTYPE the key holds a ' .. type .. ', which is not a lock')
  end
  local fields, left = {}, 0
  if type == 'hash' then
    local all = redis.call('HGETALL', raw)
    for at = 1, #all, 2 do fields[all[at]] = all[at + 1] end
    has_mode = fields.mode ~= nil
    left = redis.call('PTTL', raw)
    for name in pairs(stored and {} or fields) do state.h[#state.h + 1] = parse(name, left) end
  end
  keep_ours(function(holder)
    if is_permit(holder.kind) then
      return type == 'string' and redis.call('ZSCORE', permits_key, permit(holder))
    end
    return fields[field(holder)]
  end, function(holder)
    hide(holder)
    if not is_permit(holder.kind) then
      local name = field(holder)
      fields[name] = redis.call('HGET', raw, name) or nil
    end
  end)
  if type == 'hash' then find_foreign(fields, left) end
  if #foreign > 0 then state.y = nil end -- they have used their chance
  if type == 'string' then
    find_permits()
    local unused = state.made and #state.h == 0 and #foreign == 0
    if unused and tell_permits() then type = 'none' end
  end
  if type == 'string' then
    used_as = state.latch and 'latch' or 'semaphore'
  elseif state.latch then
    state.latch = nil -- it has opened, or its time is over
    tell_latch(0)
  end
end

-- Lets the hash live as long as the longest hold in it, and the keys of a semaphore that we made a
-- day longer.
local function keep_alive()
  local last = 0
  for _, list in ipairs({ state.h, foreign }) do
    for _, holder in ipairs(list) do last = math.max(last, holder.exp) end
  end
  if #state.h == 0 or last == math.huge then return end
  if not is_permit(state.h[1].kind) then
    redis.call('PEXPIRE', raw, last - now)
  elseif state.made then
    redis.call('PEXPIRE', raw, last - now + DAY)
    redis.call('PEXPIRE', permits_key, last - now + DAY)
  end
end

local function show_grant(holder)
  if is_permit(holder.kind) then
    if redis.call('EXISTS', raw) == 0 then state.made = true end
    local total = tonumber(redis.call('GET', raw) or 0) + redis.call('ZCARD', permits_key)
    if total < holder.of then redis.call('INCRBY', raw, holder.of - total) end
    redis.call('DECR', raw)
    redis.call('ZADD', permits_key, holder.exp, permit(holder))
  elseif is_read(holder.kind) then
    has_mode = true
    redis.call('HSETNX', raw, 'mode', 'read')
    redis.call('HINCRBY', raw, holder.owner, 1)
    keep_reading(holder.owner)
  else
    redis.call('HINCRBY', raw, field(holder), 1)
    if is_write(holder.kind) then
      has_mode = true
      redis.call('HSET', raw, 'mode', 'write')
    end
  end
end

local function show_longer(holder)
  if is_permit(holder.kind) then
    redis.call('ZADD', permits_key, holder.exp, permit(holder))
  elseif is_read(holder.kind) then
    keep_reading(holder.owner)
  end
end

-- `holder` reads now and wrote before.
local function show_downgrade(holder)
  redis.call('HDEL', raw, holder.owner .. ':write')
  redis.call('HSET', raw, 'mode', 'read')
  redis.call('HINCRBY', raw, holder.owner, 1)
  keep_reading(holder.owner)
  tell_readers_and_writers(1)
end

local function clear_foreign()
  for _, holder in ipairs(foreign) do
    if holder.member and redis.call('ZREM', permits_key, holder.member) == 1 then
      redis.call('INCR', raw)
      freed = 'permit'
    end
    freed = freed or (is_read(holder.kind) and 'read' or is_write(holder.kind) and 'write' or 'lock')
  end
  if #foreign > 0 and redis.call('TYPE', raw).ok == 'hash' then redis.call('DEL', raw) end
end

-- Waiters of ours for a fair mutex stand in Redisson's queue as well, under their request's id.
local function is_ours(member) return #member == 32 and not string.find(member, ':', 1, true) end

local function leave_fair(member)
  redis.call('LREM', fair_key, 1, member)
  redis.call('ZREM', fair_timeouts, member)
end

-- Enters the queue, or stays in it. Redisson drops a waiter when its time-out is over, and takes
-- FAIR_WAIT off all of them for each that it serves: so much more for each of its own ahead.
-- One that was dropped all the same, because that was not enough, is put back to the front.
local function enter_fair(waiter, new)
  local length = redis.call('LLEN', fair_key)
  if length == 0 or not redis.call('ZSCORE', fair_timeouts, waiter.id) then
    redis.call('LREM', fair_key, 0, waiter.id)
    length = redis.call(new and 'RPUSH' or 'LPUSH', fair_key, waiter.id)
  end
  local ahead = 0
  if length > state.f then
    for _, member in ipairs(redis.call('LRANGE', fair_key, 0, -1)) do
      if member == waiter.id then break end
      if not is_ours(member) then ahead = ahead + 1 end
    end
  end
  redis.call('ZADD', fair_timeouts, waiter.exp + ahead * FAIR_WAIT, waiter.id)
  -- Redisson's have no TTL. Where all of them are ours, nothing is to stay when all of us die.
  for _, key in ipairs({ fair_key, fair_timeouts }) do
    if length > state.f then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, 60000) end
  end
end

-- The head of Redisson's fair queue if it is not ours and listens: then it has been woken. Whoever is
-- gone is taken out; a head that does not listen keeps its place and is passed over.
local function fair_stranger()
  while true do
    local member = redis.call('LINDEX', fair_key, 0)
    if not member then return end
    local gone
    if is_ours(member) then
      local stored = redis.call('HGET', waiters_key, member)
      local ours = stored and cjson.decode(stored)
      gone = not ours or ours.exp <= now
        or redis.call('PUBSUB', 'NUMSUB', wake_prefix .. ours.party)[2] == 0
      if not gone then return end
    else
      local timeout = redis.call('ZSCORE', fair_timeouts, member)
      gone = not timeout or tonumber(timeout) <= now
    end
    if not gone then
      return redis.call(PUBLISH, lock_channel .. ':' .. member, 0) > 0 and member or nil
    end
    leave_fair(member)
  end
end

-- Whether clients of Redisson wait for what was freed; they have been woken then.
local function strangers_wait()
  if freed == 'permit' then
    return redis.call(PUBLISH, semaphore_channel, redis.call('GET', raw) or 0) > 0
  end
  if freed == 'read' or freed == 'write' then
    return tell_readers_and_writers(freed == 'write' and 1 or 0) > 0
  end
  return fair_stranger() ~= nil or redis.call(PUBLISH, lock_channel, 0) > 0
end

-- Whether a waiter of ours whose turn it is leaves the lock to a client of Redisson: a fair one to
-- whoever is before it in the fair queue, the others every now and then.
local function yields(waiter)
  if waiter.kind == 'fair-mutex' then return fair_stranger() ~= nil end
  -- Beside other readers there is nothing to leave to anybody.
  if #state.h + #foreign > 0 and not is_permit(waiter.kind) then return false end
  if (state.y or 0) <= now then
    if not freed then return false end
    if state.n < PASSES then
      state.n = state.n + 1
      return false
    end
    state.n = 0
    if not strangers_wait() then return false end
    freed, state.y = nil, now + CHANCE
  end
  -- Whoever is first then, which may not be the one who was told before.
  tell(waiter.party, waiter.id, 'later ' .. state.y - now)
  return true
end

-- Tells clients of Redisson what was freed and is still free.
local function announce()
  local free = #state.h == 0 and #foreign == 0
  if freed == 'lock' and free then
    redis.call(PUBLISH, lock_channel, 0)
    if redis.call('EXISTS', fair_key) == 1 then fair_stranger() end
  end
  if freed == 'write' then tell_readers_and_writers(1) end
  if freed == 'read' and free then tell_readers_and_writers(0) end
  if freed == 'permit' then tell_permits() end
end

local function has_strangers() return #foreign > 0 or redis.call('LLEN', fair_key) > state.f end

local function show_latch(count, ttl)
  redis.call('SET', raw, string.format('%.0f', count), 'PX', ttl)
end

-- What every step knows about its node, and what it does for those who wait.
--
-- KEYS: the lock; the node's record; until when leases may be alive that it voted for; the token of
-- the lock where it is not the one that its value says; who waits since when; who waits until when;
-- whose turn it is.
local lock, record, busy, settled = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local queue, waiters, turn = KEYS[5], KEYS[6], KEYS[7]
-- For how long the one who is woken goes first, in ms.
local TURN = 100
local known, counter

-- Not for steps that need nothing of it.
local function remember()
  known = redis.call('HMGET', record, 'run', 'from', 'counter', 'since')
  counter = tonumber(known[3]) or 0
end

-- Found as it stands, which takes a fraction of the time of a pattern: every vote begins with it.
local function run()
  local info = redis.call('INFO', 'server')
  local _, last = string.find(info, 'run_id:', 1, true)
  return string.sub(info, last + 1, last + 40)
end

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Why the node does not vote, and for how long if that is known; nothing if it does.
local function absent()
  remember()
  if not known[1] then return 'blank', -1 end
  if known[1] ~= run() then return 'restarted', -1 end
  if not known[2] then return 'waiting', -1 end
  if known[2] ~= '0' then
    local left = known[2] - now()
    if left > 0 then return 'waiting', left end
    redis.call('HSET', record, 'from', '0')
  end
end

local function count_to(number)
  if number > counter then
    counter = number
    redis.call('HSET', record, 'counter', string.format('%.0f', counter))
  end
end

-- A lease of this length has been voted for. An eighth longer, so that it need not be said every time.
local function vote_for(ttl)
  if redis.call('PTTL', busy) < ttl then
    redis.call('SET', busy, '1', 'PX', string.format('%.0f', ttl + ttl / 8))
  end
end

-- The first token of a lock of ours; 0: not settled.
local function token_of(value)
  return tonumber(redis.call('GET', settled) or string.match(value, '#(%d+)#%d+$')) or 0
end

-- Those who waited and ask no more.
local function purge(time)
  local gone = redis.call('ZRANGEBYSCORE', waiters, '-inf', time)
  for _, member in ipairs(gone) do
    redis.call('ZREM', waiters, member)
    redis.call('ZREM', queue, member)
  end
end

local function leave(member)
  if member ~= '' and redis.call('ZREM', queue, member) == 1 then redis.call('ZREM', waiters, member) end
end

-- Tells the one who has waited longest that the lock is free: one message, however many wait. Others
-- let it go first for a moment, or who released it would always be faster.
local function wake(channel)
  if redis.call('EXISTS', queue) == 0 then return end
  purge(now())
  local first = redis.call('ZRANGE', queue, 0, 0)[1]
  if first then
    local id, party = string.match(first, '^(%x+)#(%x+)#')
    if id then
      redis.call('SET', turn, first, 'PX', TURN)
      redis.call('PUBLISH', channel .. party, id)
    end
  end
end

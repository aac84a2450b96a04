-- The short way for the common case: one client has, or wants, a mutex that nobody else has to do
-- with. Such a mutex has no state of ours: its field in the hash, or its value in dialect plain, says
-- everything: OWNER#ID#PARTY#TTL#TOKENS#SINCE, with the time of the request. Whatever is not simple
-- is left to the model. Put before all scripts, after `local PLAIN = true` or `false` and `local PUBLISH`, the
-- command for channels of Redisson's: in a cluster they belong to slots.
--
-- A lock at `at` is KEYS at: 1 lock  2 our state  3 token counter  4 left by this request if it was
-- given up  5 Redisson's fair queue. Where somebody waits there is a state.

local function is_free(at)
  return redis.call('EXISTS', KEYS[at], KEYS[at + 1], KEYS[at + 3], KEYS[at + 4]) == 0
end

-- Takes a free lock. What came as text stays text: numbers would have to become text again.
local function take(at, field, ttl, tokens)
  if PLAIN then
    redis.call('SET', KEYS[at], field, 'PX', ttl)
  else
    redis.call('HSET', KEYS[at], field, '1')
    redis.call('PEXPIRE', KEYS[at], ttl)
  end
  return redis.call('INCRBY', KEYS[at + 2], tokens) - tokens + 1
end

-- Whether there is just this one hold, and nothing that the model must know of.
local function held_alone(lock, state_key, field)
  if redis.call('EXISTS', state_key) == 1 then return false end
  if PLAIN then return redis.pcall('GET', lock) == field end
  return redis.pcall('HGET', lock, field) == '1' and redis.call('HLEN', lock) == 1
end

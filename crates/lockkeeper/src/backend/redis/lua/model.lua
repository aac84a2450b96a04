-- The model of one name (model.rs) at the server. Holders of ours and evictions are JSON in one key;
-- the queue is a sorted set and a hash, so that a step does not cost more because many wait. What
-- others see and did is the dialect's business.

local function find(list)
  for at, item in ipairs(list) do
    if item.id == id then return item, at end
  end
end

local function waiter(of)
  local stored = redis.call('HGET', waiters_key, of)
  return stored and cjson.decode(stored)
end

-- Takes a request out of the queue.
local function leave(of, kind)
  moved = true
  redis.call('ZREM', queue_key, of)
  redis.call('HDEL', waiters_key, of)
  if kind == 'read' then state.r = math.max(state.r - 1, 0) end
  if is_read(kind) then state.s = math.max(state.s - 1, 0) end
  if kind == 'fair-mutex' then
    state.f = math.max(state.f - 1, 0)
    leave_fair(of)
  end
end

-- Puts a request into the queue, or lets its place last longer.
local function stand(ask, lease)
  ask.exp = now + lease
  redis.call('HSET', waiters_key, ask.id, cjson.encode(ask))
  local new = redis.call('ZADD', queue_key, 'NX', state.w + 1, ask.id) == 1
  if new then
    state.w = state.w + 1
    if ask.kind == 'read' then state.r = state.r + 1 end
    if is_read(ask.kind) then state.s = state.s + 1 end
    if ask.kind == 'fair-mutex' then state.f = state.f + 1 end
  end
  if ask.kind == 'fair-mutex' then enter_fair(ask, new) end
  redis.call('PEXPIRE', waiters_key, lease + 1000)
  redis.call('PEXPIRE', queue_key, lease + 1000)
end

-- The first waiter at this place or later whose client listens, and its place. Those whose time is over
-- are taken out; those who do not listen keep their place: they may be about to come back.
local function waiter_from(place)
  while true do
    local of = redis.call('ZRANGE', queue_key, place, place)[1]
    if not of then return end
    local found = waiter(of)
    if not found or found.exp <= now then
      leave(of, found and found.kind)
    elseif redis.call('PUBSUB', 'NUMSUB', wake_prefix .. found.party)[2] > 0 then
      return found, place
    else
      place = place + 1
    end
  end
end

local function compatible(kind, owner, of)
  local holders = #state.h + #foreign
  if is_permit(kind) then
    return holders < of and (#foreign == 0 or is_permit(foreign[1].kind))
  end
  if not is_read(kind) then return holders == 0 end
  for _, holder in ipairs(state.h) do
    if not is_read(holder.kind) and holder.owner ~= owner then return false end
  end
  for _, holder in ipairs(foreign) do
    if not is_read(holder.kind) then return false end
  end
  return true
end

-- Grants: into our state, and into what others see. `lease` may be shorter than the full time.
local function grant(ask, lease)
  local first, tokens = nil, ask.tokens
  for _, holder in ipairs(state.h) do
    if is_read(ask.kind) and holder.owner == ask.owner then
      first, tokens = holder.first, holder.tokens
    end
  end
  if not first then
    first = string.format('%.0f', redis.call('INCRBY', token_key, ask.tokens) - ask.tokens + 1)
  end
  local holder = {
    id = ask.id, owner = ask.owner, kind = ask.kind, ttl = ask.ttl, of = ask.of, party = ask.party,
    tokens = tokens, first = first, since = now, exp = now + lease, field = ask.field,
  }
  state.h[#state.h + 1] = holder
  show_grant(holder)
  return holder
end

-- Whether somebody of ours is alone and stays so: then nobody can be served.
local function is_taken()
  local holder = state.h[1]
  return holder and #state.h == 1 and not freed and not is_read(holder.kind) and not is_permit(holder.kind)
end

-- Serves the queue as far as it can be served. The grant travels with the message, which names the
-- last question of the waiter: one that arrives after a later question was answered is out of date.
local function hand_over()
  if is_taken() then return end
  local place, passed = 0, false
  while not passed or state.r > 0 do
    local next
    next, place = waiter_from(place)
    if not next then return end
    local free = compatible(next.kind, next.owner, next.of)
    if free and (not passed or next.kind == 'read') and not yields(next) then
      leave(next.id, next.kind)
      local lease = math.min(next.ttl, next.lease)
      local holder = grant(next, lease)
      holder.waited = true
      local words = { 'grant', next.question, holder.first, holder.tokens, lease }
      tell(next.party, next.id, table.concat(words, ' '))
      -- Only its owner's readers could still be served.
      if not is_read(next.kind) and not is_permit(next.kind) and state.s == 0 then return end
    else
      place, passed = place + 1, true
    end
  end
end

-- Reads our state, finds out what became of it, and serves whoever can be served.
local function load()
  stored = redis.call('GET', state_key)
  if stored then state = cjson.decode(stored) end
  local fault = look(redis.call('TYPE', raw).ok)
  if fault then return fault end
  state.e = lasting(state.e)
  hand_over()
end

-- Serves the queue, tells the others, and stores our state for as long as anything in it lasts, if
-- there is anything that others cannot see.
local function save()
  hand_over()
  -- Only the first in line listens to others, or looks: whoever is that now, or has reason to, is told.
  local head = (freed or moved) and #foreign > 0 and waiter_from(0)
  if head then tell(head.party, head.id) end
  keep_alive()
  announce()
  local last = redis.call('EXISTS', queue_key) == 1 and now + WAITER_LEASE or 0
  for _, item in ipairs(state.e) do last = math.max(last, item.exp) end
  if state.made or state.latch then
    -- Longer than a waiter for the latch takes to look again: it tells Redisson's that it is gone.
    last = math.max(last, now + math.max(redis.call('PTTL', raw), 0) + 2 * WAITER_LEASE)
  end
  if last == 0 and (#state.h == 0 or is_simple(state.h[1])) then
    if stored then redis.call('DEL', state_key) end
    return
  end
  for _, item in ipairs(state.h) do last = math.max(last, item.exp) end
  redis.call('SET', state_key, cjson.encode(state), 'PX', last - now + 1000)
end

-- Whether the name is a closed latch, ours or one of Redisson's, which looks like a semaphore of which
-- no permit is taken.
local function is_latch()
  return used_as ~= nil and not state.made and #foreign == 0 and #state.h == 0 and not waiter_from(0)
end

-- When a hold ends, in ms from now; -1: none does.
local function next_expiry()
  local next = math.huge
  for _, list in ipairs({ state.h, foreign }) do
    for _, item in ipairs(list) do next = math.min(next, item.exp) end
  end
  return next < math.huge and math.max(next - now, 0) or -1
end

-- Lets the lease of a holder of ours end `ttl` from now.
local function extend(holder, ttl)
  holder.exp = now + ttl
  show_longer(holder)
end

-- Why a hold is not ours any more.
local function why_lost()
  local gone = find(state.e)
  return { 0, gone and gone.reason or '' }
end

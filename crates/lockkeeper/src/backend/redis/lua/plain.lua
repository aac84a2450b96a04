-- Dialect plain: what clients see that lock with `SET name value NX PX`. While anybody of ours holds
-- the name in any way, it is a string with our value; `state.v` says which. Any other string is
-- somebody else's lock.

-- Removes a holder of ours.
local function hide(holder)
  freed = is_permit(holder.kind) and 'permit' or is_read(holder.kind) and 'read' or 'lock'
end

-- Shows what is held now to the others.
local function keep_alive()
  local last = 0
  for _, holder in ipairs(state.h) do last = math.max(last, holder.exp) end
  if last > now then
    redis.call('SET', raw, state.v, 'PX', last - now)
  elseif state.v and not state.latch then
    redis.call('DEL', raw)
    state.v = nil
  end
end

-- Finds out what others did.
local function look(type)
  if not state.v and (#state.h > 0 or state.made or state.latch) then
    return redis.error_reply('WRONGTYPE the name is in use in dialect redisson')
  end
  if type ~= 'none' and type ~= 'string' then
    return redis.error_reply('WRONGTYPE the key holds a ' .. type .. ', which is not a lock')
  end
  local value = redis.call('GET', raw)
  if value and not stored then
    state.h[1] = parse(value, redis.call('PTTL', raw))
    state.v = state.h[1] and value
  end
  local ours = value and value == state.v
  if state.latch and not ours then
    state.latch = nil -- it has opened, or its time is over
    tell_latch(0)
  end
  if not state.latch then
    keep_ours(function() return ours end, hide)
    if ours and #state.h == 0 then
      redis.call('DEL', raw)
      value = false
    end
    if #state.h == 0 then state.v = nil end
  end
  if value and not ours then
    local left = redis.call('PTTL', raw)
    if left < 0 then left = math.huge end -- somebody's lock without a TTL: held until it is evicted
    local readable = #value > 0 and #value <= 64 and not string.find(value, '[^%w%p]')
    foreign[1] = { kind = 'mutex', owner = readable and value or 'somebody', exp = now + left }
  end
  if state.latch then used_as = 'latch' end
end

local function show_grant(holder)
  if #state.h == 1 then state.v = holder.field or holder.id end
end

local function show_longer() end
local function show_downgrade() end

local function clear_foreign()
  if #foreign > 0 then redis.call('DEL', raw) end
end

-- Nobody else queues or listens here.
local function enter_fair() end
local function leave_fair() end
local function yields() return false end
local function announce() end
local function has_strangers() return #foreign > 0 end

local function show_latch(count, ttl)
  state.v = string.format('%.0f', count)
  redis.call('SET', raw, state.v, 'PX', ttl)
end

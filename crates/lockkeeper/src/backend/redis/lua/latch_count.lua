-- What is left of the latch.
-- Returns: the count
local fault = load()
if fault then return fault end
save()
return is_latch() and tonumber(redis.call('GET', raw)) or 0

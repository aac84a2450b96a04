-- Who has the lock, for how long still, under which token, and who waits.
local held = redis.call('GET', lock)
local answer = { held or '', 0, 0 }
if held then
  answer[2], answer[3] = redis.call('PTTL', lock), token_of(held)
end
purge(now())
for _, member in ipairs(redis.call('ZRANGE', queue, 0, -1)) do answer[#answer + 1] = member end
return answer

-- Lets a node vote that waits. ARGV: its run and mark; after how long; the counter; whether nobody remembers
-- the tokens from before: then it counts on from the time in microseconds, which they never reach.
local why, left = absent()
if why ~= 'waiting' or left >= 0 then return 0 end
-- It may have voted and forgotten again since whoever says this looked.
if known[1] .. ':' .. (known[4] or '') ~= ARGV[1] then return 0 end
local time = now()
count_to(math.max(tonumber(ARGV[3]), ARGV[4] == '1' and time * 1000 or 0))
redis.call('HSET', record, 'from', string.format('%.0f', time + ARGV[2]))
return 1

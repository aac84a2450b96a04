-- What the node remembers. ARGV: 1 to have it wait if it neither votes nor waits; 2 to have it vote at
-- once if it has never been one of us. Returns how it stands, for how long it waits, the counter, for
-- how long leases may be alive, and its run with the time of its mark.
local why, left = absent()
local run, time = run(), now()
if ARGV[1] == '1' and (why == 'blank' or why == 'restarted') then
  redis.call('HSET', record, 'run', run, 'since', string.format('%.0f', time))
  redis.call('HDEL', record, 'from')
  known[4] = string.format('%.0f', time)
  why, left = 'waiting', -1
elseif ARGV[1] == '2' and why == 'blank' then
  redis.call('HSET', record, 'run', run, 'from', '0')
  count_to(time * 1000)
  why = nil
end
local stands = 'voting'
if why == 'waiting' then
  stands = left < 0 and 'marked' or 'admitted'
elseif why then
  stands = why
end
local waited = known[4] and math.max(time - known[4], 0) or 0
return { stands, waited, counter, math.max(redis.call('PTTL', busy), 0), run .. ':' .. (known[4] or '') }

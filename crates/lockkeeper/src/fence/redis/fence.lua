-- Goes before a script and lets it run unless its token is older than one that was seen.
-- KEYS: 1 the fence; the others are the script's
-- ARGV: 1 the token  2 how long to remember it in ms, or ''; the others are the script's
-- Returns: the error LKSTALE with the newest token, LKBROKEN if the fence is none, or goes on
do
    local fence, token, keep = KEYS[1], ARGV[1], ARGV[2]
    local seen = redis.call('GET', fence)
    if seen and not string.match(seen, '^[1-9]%d*$') then
        return redis.error_reply('LKBROKEN ' .. fence)
    end
    -- As texts: numbers of Lua are exact up to 2^53 only.
    if seen and (#seen > #token or (#seen == #token and seen > token)) then
        return redis.error_reply('LKSTALE ' .. seen)
    end
    -- First of all: a script that fails halfway is not rolled back.
    if keep ~= '' then
        redis.call('SET', fence, token, 'PX', keep)
    elseif seen ~= token then
        redis.call('SET', fence, token)
    else
        redis.call('PERSIST', fence)
    end
end

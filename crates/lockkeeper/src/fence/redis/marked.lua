-- Goes before a script and lets it run only while the mark is there.
-- KEYS: 1 where the mark is; the others are the script's
-- ARGV: 1 the mark  2 unused; the others are the script's
-- Returns: the error LKOVERTAKEN, or goes on
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return redis.error_reply('LKOVERTAKEN by another mark')
end

-- Gives a lease back.
-- KEYS: 1 entry  ARGV: 1 ticket
-- Returns: now
local key, ticket = KEYS[1], ARGV[1]
local entry, kind = read(key)
if entry and kind ~= 'W' and string.sub(entry, 3, 18) == ticket then without_lease(key, entry, kind) end
return {now}

-- What follows sees its own keys and arguments only.
local KEYS, ARGV = (function(keys, args)
    local own_keys, own_args = {}, {}
    for i = 2, #keys do own_keys[i - 1] = keys[i] end
    for i = 3, #args do own_args[i - 2] = args[i] end
    return own_keys, own_args
end)(KEYS, ARGV)

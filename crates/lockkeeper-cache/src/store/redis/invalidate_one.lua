-- Takes away the value and the lease that are under a key.
local function invalidate(key, floor, floor_ms, keep_ms)
  local entry, kind = read(key)
  local floor_ends = floor == ZERO and 0 or now + floor_ms
  if kind == 'V' and floor ~= ZERO and not less(string.sub(entry, 43, 50), floor) then return end
  local until_ = kind and kind ~= 'V' and ends(key) or 0
  make_room(key)
  if not entry then write_gap(key, floor, ZERO, '', floor_ends)
  elseif kind == 'V' then
    local last = keep_ms > 0 and 'V\1' .. NONE .. string.sub(entry, 27) or ''
    write_gap(key, floor, pack(now), last, math.max(floor_ends, keep_ms > 0 and now + keep_ms or 0))
  elseif kind == 'L' then
    local raised = larger(floor, string.sub(entry, 27, 34))
    write_gap(key, raised, string.sub(entry, 35, 42), string.sub(entry, 43), math.max(floor_ends, until_))
  else
    local raised = larger(floor, string.sub(entry, 3, 10))
    write(key, 'W\1' .. raised .. string.sub(entry, 11), math.max(floor_ends, until_))
  end
end

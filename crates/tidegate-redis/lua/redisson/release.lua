-- Releases permits, the oldest first, and removes their entries, which would return them once more.
--
-- ARGV[3] number of permits   ARGV[4] an id
-- reply   1, number of released permits, the rate, the interval | 4 if there is more to count:
--         retry

local id, rest = ARGV[4], whole(ARGV[3], 'the number of permits')
local s = look('whole', id)
if not s then
  return { 4 }
end

-- Everything is read before anything is written.
local oldest = redis.call('ZRANGE', permits_key, s.gone, s.gone + math.min(rest, MAX) - 1)
local released = 0
for i, member in ipairs(oldest) do
  local permits = unpack_entry(member)
  if s.cut and i == 1 then
    permits = s.cut.permits
  end
  local part = math.min(permits, rest)
  released, rest = released + part, rest - part
  s.cut = nil
  if part < permits then
    s.cut = { member = member, permits = permits - part }
    break
  end
  s.gone = s.gone + 1
  if rest == 0 then
    break
  end
end
local part = math.min(s.lost, rest)
s.lost, released = s.lost - part, released + part
s.left = math.min(s.left + released, rate)
settle(s, id)
keep()
return { 1, released, rate, interval }

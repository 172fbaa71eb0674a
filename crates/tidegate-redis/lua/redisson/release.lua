-- Gives permits back, the oldest first, and with each its entry: it would come back once more with that.
--
-- ARGV[3] how many   ARGV[4] an id
-- answers 1, how many came back, the rate, the interval | 4 if there is more to be counted: ask again

local id, rest = ARGV[4], whole(ARGV[3], 'the number of permits')
local s = look('whole', id)
if not s then
  return { 4 }
end

-- Everything is read before anything is written.
local oldest = redis.call('ZRANGE', permits_key, s.gone, s.gone + math.min(rest, MOST) - 1)
local given = 0
for i, member in ipairs(oldest) do
  local permits = unpack_entry(member)
  if s.cut and i == 1 then
    permits = s.cut.permits
  end
  local part = math.min(permits, rest)
  given, rest = given + part, rest - part
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
s.lost, given = s.lost - part, given + part
s.left = math.min(s.left + given, rate)
settle(s, id)
keep()
return { 1, given, rate, interval }

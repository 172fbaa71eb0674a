-- Gives permits back, the oldest first, and with each its entry: it would come back once more with that.
--
-- ARGV[2] how many   ARGV[3] an id
-- answers 1, how many came back

local s = look()
if not s.whole and redis.call('ZCARD', permits_key) <= MOST then
  s = count_all(s.trust)
end
settle(s, ARGV[3])
local given, rest = 0, whole(ARGV[2], 'the number of permits')
local oldest = redis.call('ZRANGE', permits_key, 0, math.min(rest, MOST) - 1, 'WITHSCORES')
for i = 1, #oldest, 2 do
  local permits, id = unpack_entry(oldest[i])
  local part = math.min(permits, rest)
  redis.call('ZREM', permits_key, oldest[i])
  if part < permits then
    redis.call('ZADD', permits_key, oldest[i + 1], pack(id, permits - part))
  end
  given, rest = given + part, rest - part
  if rest == 0 then
    break
  end
end
redis.call('SET', value_key, digits(math.min(s.left + given, rate)))
keep()
return { 1, given }

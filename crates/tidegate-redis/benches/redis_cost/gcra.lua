-- A token bucket as it is written by hand: the instant at which the bucket is empty again.
-- KEYS 1 the key   ARGV 1 us per permit   2 us of the whole burst   3 cost
-- reply {allowed, remaining, retry_after, reset_after}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local added = interval * tonumber(ARGV[3])
local stored = redis.call('GET', KEYS[1])
local empty = now
if stored then
  empty = tonumber(stored)
  if empty < now then
    empty = now
  end
end
local filled = empty + added
local over = filled - now - burst
if over > 0 then
  return { 0, math.floor((burst - (empty - now)) / interval), math.ceil(over), math.ceil(empty - now) }
end
redis.call('SET', KEYS[1], string.format('%.0f', filled), 'PX', math.ceil((filled - now) / 1000))
return { 1, math.floor(-over / interval), 0, math.ceil(filled - now) }

-- Sets the rate: if there is none (`try`), with a reset (`set`), or without one (`update`).
--
-- ARGV[3] `try`, `set` or `update`   ARGV[4] an id   ARGV[5] rate   ARGV[6] interval, ms
-- ARGV[7] type   ARGV[8] keep-alive time, ms, or 0
-- reply   1 if it was set, 0 if not | 4 if there is more to count: retry

local NAMES = { 'rate', 'interval', 'type', 'keepAliveTime' }
local old = redis.call('HMGET', KEYS[1], unpack(NAMES))
local complete = old[1] and old[2] and old[3]
local new = { ARGV[5], ARGV[6], ARGV[7], ARGV[8] }
local mode, id = ARGV[3], ARGV[4]
if mode == 'try' and complete or mode == 'update' and not old[3] then
  return { 0 }
end
-- The stored values must be Redisson's, before any of them is changed.
local was_kept = old[4] and whole(old[4], 'the keep-alive time') > 0

if mode == 'try' then
  configure({ old[1] or new[1], old[2] or new[2], old[3] or new[3], old[4] or new[4] })
  for i, name in ipairs(NAMES) do
    redis.call('HSETNX', KEYS[1], name, new[i])
  end
  if not old[3] and keep_alive > 0 then
    redis.call('PEXPIRE', KEYS[1], digits(keep_alive))
  end
  return { old[3] and 0 or 1 }
end

local s
if mode == 'update' and complete and old[3] == new[3] then
  -- Permits that Java released count by the old rate.
  configure(old)
  s = look('whole', id)
  if not s then
    return { 4 }
  end
  settle(s, id)
end
local taken = s and rate - s.left

for i, name in ipairs(NAMES) do
  redis.call('HSET', KEYS[1], name, new[i])
end
configure(new)
if keep_alive > 0 then
  redis.call('PEXPIRE', KEYS[1], digits(keep_alive))
elseif was_kept then
  -- It had a keep-alive time, and has none now.
  redis.call('PERSIST', KEYS[1])
end
if s and s.progress then
  local c = s.progress
  c.rate, c.interval = new[1], new[2]
  redis.call('SET', value_key, digits(rate - taken), 'KEEPTTL')
  write_count(c)
  keep()
elseif s then
  settle(count_all(nil), id)
  keep()
elseif old[3] and old[3] ~= new[3] then
  redis.call('DEL', unpack(KEYS, 2, 7))
else
  redis.call('DEL', value_key, permits_key, count_key)
end
return { 1 }

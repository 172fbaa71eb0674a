-- Sets the rate: if there is none, anew, or for what there is.
--
-- ARGV[2] `try`, `set` or `update`   ARGV[3] an id   ARGV[4] rate   ARGV[5] interval, ms   ARGV[6] type
-- ARGV[7] keep-alive time, ms, or 0
-- answers 1 if it was set, 0 if not

local old = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local complete = old[1] and old[2] and old[3]
local new = { ARGV[4], ARGV[5], ARGV[6], ARGV[7] }
local how = ARGV[2]
if how == 'try' and complete or how == 'update' and not old[3] then
  return { 0 }
end
local same_state = how == 'update' and complete and old[3] == new[3]
if same_state then
  -- What Java gave back counts by the old rate.
  configure(old)
  local text = redis.call('GET', value_key)
  local s = count_all(text and whole(text, 'what is left'))
  settle(s, ARGV[3])
end

local write = how == 'try' and 'HSETNX' or 'HSET'
for i, name in ipairs({ 'rate', 'interval', 'type', 'keepAliveTime' }) do
  redis.call(write, KEYS[1], name, new[i])
end
configure(new)
if how == 'try' then
  if not old[3] and keep_alive > 0 then
    redis.call('PEXPIRE', KEYS[1], digits(keep_alive))
  end
  return { old[3] and 0 or 1 }
end
if keep_alive > 0 then
  redis.call('PEXPIRE', KEYS[1], digits(keep_alive))
elseif old[4] and whole(old[4], 'the keep-alive time') > 0 then
  -- It was to live for as long as it was used, and no longer is.
  redis.call('PERSIST', KEYS[1])
end
if same_state then
  settle(count_all(nil), ARGV[3])
  keep()
elseif old[3] and old[3] ~= new[3] then
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
else
  redis.call('DEL', value_key, permits_key)
end
return { 1 }

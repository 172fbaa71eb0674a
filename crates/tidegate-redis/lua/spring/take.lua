-- Takes tokens from a bucket of Spring Cloud Gateway, as its own script does: whole seconds, and
-- two numbers in decimal text.
--
-- KEYS[1] the tokens   KEYS[2] the second in which they were counted
-- ARGV[1] now in us, or empty for the clock of Redis   ARGV[2] rate   ARGV[3] capacity
-- ARGV[4] tokens
-- reply   1, remaining tokens, rounded down | 0, the same, the us until there may be enough, or -1
--         for never

local function number(text)
  local n = tonumber(text)
  -- `nan` is unequal to itself, and every comparison with it is false.
  if n and n == n and math.abs(n) <= 9007199254740991 then
    return n
  end
  error('TIDEGATE a bucket of Spring Cloud Gateway is not a number', 0)
end

local now_us
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
else
  now_us = number(ARGV[1])
end
local now = math.floor(now_us / 1000000)
local rate, capacity, wanted = number(ARGV[2]), number(ARGV[3]), number(ARGV[4])
local tokens, since = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
tokens = tokens and number(tokens) or capacity
since = since and number(since) or 0

local filled = math.min(capacity, tokens + math.max(0, now - since) * rate)
if filled < wanted then
  -- Nothing is written: the next call computes the refill again.
  local wait = -1
  if wanted <= capacity then
    wait = (now + math.ceil((wanted - filled) / rate)) * 1000000 - now_us
  end
  return { 0, math.floor(filled), wait }
end
filled = filled - wanted
-- Twice the time in which it fills; if that is less than a second, Spring stores nothing.
local ttl = math.floor(capacity / rate * 2)
if ttl > 0 then
  redis.call('SETEX', KEYS[1], ttl, filled)
  redis.call('SETEX', KEYS[2], ttl, now)
end
return { 1, math.floor(filled) }

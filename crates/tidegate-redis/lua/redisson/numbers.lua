-- What every script for Redisson's limiter begins with: whole numbers, the clock, and how an entry is packed.
--
-- KEYS[1] the configuration, a hash
-- KEYS[2] what is left, a number           KEYS[3] the same of this client alone
-- KEYS[4] what was taken, a sorted set     KEYS[5] the same of this client alone
-- ARGV[1] now in us, or empty for the server's own
-- ARGV[2] the rate and the interval when this client last looked, with a space between; or empty
--
-- A member of the set is the length of an id, the id, and a number of permits; its score is the ms at which
-- they were taken. Left and taken together are the rate, as long as nobody errs.

local MAX = 9007199254740991 -- 2^53 - 1

-- As a string: Redis 6.2 cannot say what is in a table.
local function fail(what)
  error('TIDEGATE ' .. what, 0)
end

-- A whole number that somebody else has written, or has told. A rate in Java may be anything of 64 bits.
local function whole(text, name)
  local n = string.find(text, '^%-?%d+$') and tonumber(text)
  if not n or n > MAX or n < -MAX then
    fail(name .. ' is no whole number below 2^53')
  end
  return n
end

local function digits(n)
  return string.format('%.0f', n)
end

local now_us
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
else
  now_us = whole(ARGV[1], 'the time')
end
-- Rounding must not shorten the time for which an entry counts: looked at early, written late.
local now_ms = math.floor(now_us / 1000)
local stamp_ms = math.ceil(now_us / 1000)

local function pack(id, permits)
  return struct.pack('Bc0I', #id, id, permits)
end

-- The permits and the id of an entry. In older versions the length took eight bytes instead of one.
local function unpack_entry(member)
  local len = #member
  if len >= 5 then
    if len == string.byte(member) + 5 then
      return struct.unpack('I', member, len - 3), string.sub(member, 2, len - 4)
    end
    if len >= 12 and struct.unpack('L', member) == len - 12 then
      return struct.unpack('I', member, len - 3), string.sub(member, 9, len - 4)
    end
  end
  fail('an entry of the limiter has a shape that no version of Redisson writes')
end

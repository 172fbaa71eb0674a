-- The head of every script for Redisson's limiter: integers, the clock, and the format of an entry.
--
-- KEYS[1] the configuration, a hash
-- KEYS[2] the remaining permits, a number    KEYS[3] the same of this client only
-- KEYS[4] the entries, a sorted set          KEYS[5] the same of this client only
-- ARGV[1] now in us, or empty for the clock of Redis
-- ARGV[2] the rate and the interval that this client knows, separated by a space; or empty
--
-- A member of the set is the length of an id, the id, and a number of permits; its score is the ms
-- at which they were taken. Remaining permits and entries add up to the rate, unless a client has a
-- bug.

local MAX = 9007199254740991 -- 2^53 - 1

-- A string: Redis 6.2 does not print the contents of a table.
local function fail(text)
  error('TIDEGATE ' .. text, 0)
end

-- An integer that another client has written, or an argument. A rate in Java may be any 64-bit
-- number.
local function whole(text, name)
  local n = string.find(text, '^%-?%d+$') and tonumber(text)
  if not n or n > MAX or n < -MAX then
    fail(name .. ' is not an integer below 2^53')
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
-- Rounding must not shorten the time for which an entry counts: round down to read, up to write.
local now_ms = math.floor(now_us / 1000)
local stamp_ms = math.ceil(now_us / 1000)

local function pack(id, permits)
  return struct.pack('Bc0I', #id, id, permits)
end

-- The permits and the id of an entry. In older versions the length has eight bytes instead of one.
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
  fail('an entry of the limiter has a format that no version of Redisson writes')
end

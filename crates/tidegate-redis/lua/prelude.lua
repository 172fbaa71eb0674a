-- Shared by all scripts: integers, the clock, and constants of stored states.
--
-- Numbers are doubles. Every number that is stored or compared is an integer below 2^53, where
-- doubles are exact. Products and quotients that could leave that range are checked.

local MAX = 9007199254740991 -- 2^53 - 1: the last instant and the longest span
local WHOLE = 4503599627370495 -- 2^52 - 1: capacities, so that a debt of the same size is exact
-- Versions of stored values, in their first byte: a value with a higher one is not modified.
local STATE_VERSION = 2
local RECORD_VERSION = 1 -- of holds and ids
local algorithms = {} -- by the number in a stored state

-- A string: Redis 6.2 does not print the contents of a table.
local function fail(text)
  error('TIDEGATE ' .. text, 0)
end

-- An integer in decimal digits, from `least` (0) to `most` (2^53 - 1). Other texts that `tonumber`
-- accepts are refused: `nan`, with which every comparison is false, signs, fractions, hexadecimals.
local find = string.find
local MAX_PARSED = 512
local parsed, parsed_count = {}, 0 -- a function reads the same limits again and again
local function number(text, name, least, most)
  local n = parsed[text]
  if not n then
    n = not find(text, '%D') and tonumber(text)
    if parsed_count == MAX_PARSED then
      parsed, parsed_count = {}, 0
    end
    parsed[text], parsed_count = n or nil, parsed_count + 1
  end
  if not n or n < (least or 0) or n > (most or MAX) then
    fail('bad number for ' .. name)
  end
  return n
end

-- Integer division. The remainder is exact, and therefore the quotient.
local function floor_div(a, b)
  return (a - math.fmod(a, b)) / b
end

local function ceil_div(a, b)
  local r = math.fmod(a, b)
  if r == 0 then
    return a / b
  end
  return (a - r) / b + 1
end

-- ceil(a * b / c) for numbers whose product is too large for a double, by long multiplication.
-- At most `most`.
local function mul_div_ceil(a, b, c, most)
  local quotient, rest = 0, 0
  local whole, part = floor_div(b, c), math.fmod(b, c)
  for bit = 52, 0, -1 do
    local power = 2 ^ bit
    -- `rest` and `quotient` are those of the product with the bits of `a` so far
    quotient, rest = quotient * 2, rest * 2
    if rest >= c then
      quotient, rest = quotient + 1, rest - c
    end
    if a >= power then
      a = a - power
      quotient, rest = quotient + whole, rest + part
      if rest >= c then
        quotient, rest = quotient + 1, rest - c
      end
    end
    if quotient > most then
      quotient = most + 1
    end
  end
  if rest > 0 then
    quotient = quotient + 1
  end
  return math.min(quotient, most)
end

-- The span from `now` until `more` ticks of length `length` after tick number `tick`, at most MAX.
-- `tick` and `more` are not added: the sum may be too large to be exact, its distance from `now` is
-- not.
local function until_tick(tick, more, length, now)
  local rest = math.fmod(now, length)
  local ticks = tick - (now - rest) / length + more
  if ticks <= 0 then
    return 0
  end
  if ticks - 1 > MAX / length then
    return MAX
  end
  return math.min((ticks - 1) * length + (length - rest), MAX)
end

-- The clock of Redis, or the instant that a test passes.
local function read_clock(given)
  if given ~= '' then
    return number(given, 'instant')
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function copy(state)
  local result = {}
  for k, v in pairs(state) do
    result[k] = v
  end
  return result
end

-- What every script shares: whole numbers, the clock, and the shape of a stored state.
--
-- Numbers are doubles. Every number that is kept or compared is whole and below 2^53, where doubles
-- are exact; nothing is multiplied or divided that could leave that range without being looked at.

local MAX = 9007199254740991 -- 2^53 - 1: the last instant and the longest span
local WHOLE = 4503599627370495 -- 2^52 - 1: capacities, so that a debt of as much again is exact
local VERSION = 1 -- the first byte of every value; a higher one is somebody else's and not touched
local algorithms = {} -- by the number that stands in a stored state

-- As a string: Redis 6.2 cannot say what is in a table.
local function fail(what)
  error('TIDEGATE ' .. what, 0)
end

-- A whole number in decimal digits, from `least` (0) to `most` (2^53 - 1). Whatever else `tonumber`
-- takes is refused: `nan`, with which every comparison is false, signs, fractions, hexadecimals.
local find = string.find
local function number(text, name, least, most)
  local n = not find(text, '%D') and tonumber(text)
  if not n or n < (least or 0) or n > (most or MAX) then
    fail('bad number for ' .. name)
  end
  return n
end

-- Division of whole numbers. The remainder is exact, and with it the quotient.
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
    -- rest and quotient stand for the product with the bits of `a` so far
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
-- The two are kept apart: their sum may be too large to be exact, its distance from `now` is not.
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

-- The clock of everything that is shared: Redis's own. Tests pass an instant of their own.
local function read_clock(given)
  if given ~= '' then
    return number(given, 'instant')
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function copy(state)
  local twin = {}
  for k, v in pairs(state) do
    twin[k] = v
  end
  return twin
end

-- sliding-window .. approximate. docs/understand/algorithms.md, "Approximate".
--
-- limit: tick (us), size (permits), window (ticks)
-- state: previous, present (permits), index (number of the current window)

local approximate = { format = '<ddddddd', unused = { previous = 0, present = 0, index = 0 } }
algorithms[5] = approximate

function approximate.limit(next)
  local limit = { tick = next('tick', 1), size = next('size', 0, WHOLE), window = next('window', 1) }
  limit.capacity = limit.size
  if limit.size * limit.window > WHOLE then
    fail('bad number for size')
  end
  return limit
end

function approximate.pack(limit, s, stamp)
  return struct.pack(approximate.format, limit.tick, limit.size, limit.window, s.previous,
    s.present, s.index, stamp)
end

function approximate.unpack(value, from)
  local tick, size, window, previous, present, index, stamp, next_byte =
    struct.unpack(approximate.format, value, from)
  return { tick = tick, size = size, window = window, capacity = size },
    { previous = previous, present = present, index = index }, next_byte, stamp
end

function approximate.same(a, b)
  return a.tick == b.tick and a.size == b.size and a.window == b.window
end

function approximate.recovery(limit)
  return 2 * limit.window * limit.tick
end

-- The counters at `at`, and how many ticks of the current window have passed.
local function counters_at(limit, s, at)
  local tick = floor_div(at.now, limit.tick)
  local passed = math.fmod(tick, limit.window)
  local index = (tick - passed) / limit.window
  if s and index == s.index then
    return { previous = s.previous, present = s.present, index = index }, passed
  end
  if s and index == s.index + 1 then
    return { previous = s.present, present = 0, index = index }, passed
  end
  return { previous = 0, present = 0, index = index }, passed
end

local function sum(limit, pair, passed)
  local weighted = ceil_div(pair.previous * (limit.window - passed), limit.window)
  return math.min(pair.present + weighted, 2 * limit.size)
end

-- How many ticks of a window must pass until the weighted previous `count` fits into `room`.
local function ticks_until_fits(limit, count, room)
  if count == 0 then
    return 0
  end
  return math.max(0, limit.window - floor_div(room * limit.window, count))
end

function approximate.used(limit, s, at)
  return sum(limit, counters_at(limit, s, at))
end

function approximate.wait(limit, s, at, permits)
  local pair, passed = counters_at(limit, s, at)
  local room = limit.size - permits
  if sum(limit, pair, passed) <= room then
    return 0
  end
  local ticks
  if pair.present <= room then
    ticks = ticks_until_fits(limit, pair.previous, room - pair.present)
  else
    ticks = limit.window + ticks_until_fits(limit, pair.present, room)
  end
  return until_tick(pair.index * limit.window, ticks, limit.tick, at.now)
end

function approximate.reset_after(limit, s, at)
  local pair = counters_at(limit, s, at)
  if pair.present > 0 then
    return until_tick(pair.index * limit.window, 2 * limit.window, limit.tick, at.now)
  end
  if pair.previous > 0 then
    return until_tick(pair.index * limit.window, limit.window, limit.tick, at.now)
  end
  return 0
end

function approximate.charge(limit, s, at, permits)
  local pair, passed = counters_at(limit, s, at)
  pair.present = pair.present + math.min(permits, 2 * limit.size - sum(limit, pair, passed))
  return pair
end

-- The current window first: a refund from the previous counter has only its current weight.
function approximate.refund(limit, s, at, permits)
  local pair, passed = counters_at(limit, s, at)
  local used = sum(limit, pair, passed)
  local from_present = math.min(permits, pair.present)
  pair.present = pair.present - from_present
  pair.previous = math.max(0, pair.previous - (permits - from_present))
  local back = used - sum(limit, pair, passed)
  if pair.present + pair.previous == 0 then
    return nil, back
  end
  return pair, back
end

function approximate.ahead(limit, s, at)
  return s.index > floor_div(floor_div(at.now, limit.tick), limit.window)
end

-- Both counts become the current one: at the end of an earlier window the previous count would have
-- no weight, and its permits would be admitted again.
function approximate.rebase(limit, s, at)
  local index = floor_div(floor_div(at.now, limit.tick), limit.window)
  return { previous = 0, present = math.min(s.present + s.previous, 2 * limit.size), index = index }
end

-- nil, false if the windows differ; then the used permits are charged again.
function approximate.carry(limit, old, s, at)
  if old.window ~= limit.window or old.tick ~= limit.tick then
    return nil, false
  end
  local pair, passed = counters_at(limit, s, at)
  pair.present = math.min(pair.present, limit.size)
  local fits = floor_div((limit.size - pair.present) * limit.window, limit.window - passed)
  pair.previous = math.min(pair.previous, fits, 2 * limit.size)
  if pair.present + pair.previous == 0 then
    return nil
  end
  return pair
end

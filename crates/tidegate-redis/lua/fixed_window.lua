-- fixed-window: aligned, calendar, first-hit. docs/understand/algorithms.md, "Fixed window".
--
-- limit: mode (0 aligned, 1 calendar, 2 first-hit), size (permits), length (us; 0 for a calendar)
-- state: used (permits), start (us), length (us) of the window it was counted in
-- The client sends the calendar window of the instant, as at.start and at.stop. The state stores
-- the length of its window; of the window in which it was written if nothing is used.

local fixed = { format = '<Bddddd', unused = { used = 0, start = 0, length = 0 } }
algorithms[3] = fixed

function fixed.limit(next)
  local mode, size = next('mode', 0, 2), next('size', 0, WHOLE)
  return { mode = mode, size = size, length = next('length', mode ~= 1 and 1 or 0), capacity = size }
end

function fixed.pack(limit, s, stamp)
  local length = limit.mode == 1 and s.length > 0 and s.length or limit.length
  return struct.pack(fixed.format, limit.mode, limit.size, length, s.used, s.start, stamp)
end

function fixed.unpack(value, from)
  local mode, size, length, used, start, stamp, next_byte =
    struct.unpack(fixed.format, value, from)
  return { mode = mode, size = size, length = length, capacity = size },
    { used = used, start = start, length = length }, next_byte, stamp
end

function fixed.same(a, b)
  return a.mode == b.mode and a.size == b.size and (a.mode == 1 or a.length == b.length)
end

function fixed.recovery(limit)
  return limit.length
end

-- The window that contains `at`. A first-hit window that is over starts again. If no calendar was
-- sent, or that of another limit, a calendar state uses its own window, and after that one of the
-- same length.
local function window_of(limit, s, at)
  if limit.mode == 1 then
    if at.start then
      return at.start, at.stop
    end
    if s and at.now - s.start < s.length then
      return s.start, s.start + s.length
    end
    return at.now, at.now + math.max(1, limit.length)
  end
  local start = at.now - math.fmod(at.now, limit.length)
  if limit.mode == 2 then
    start = at.now
    if s and at.now - s.start < limit.length then
      start = s.start
    end
  end
  return start, start + limit.length
end

local function until_end(limit, s, at)
  local start, stop = window_of(limit, s, at)
  if limit.mode ~= 1 then
    return limit.length - (at.now - start)
  end
  return stop - at.now
end

-- A calendar window keeps the length that it had when it was counted: in another time zone, or per
-- week instead of per day, the current window is another one.
function fixed.used(limit, s, at)
  if limit.mode == 1 then
    return at.now - s.start < s.length and s.used or 0
  end
  local start = window_of(limit, s, at)
  return s.start == start and s.used or 0
end

function fixed.wait(limit, s, at, permits)
  if fixed.used(limit, s, at) <= limit.size - permits then
    return 0
  end
  return until_end(limit, s, at)
end

function fixed.reset_after(limit, s, at)
  if fixed.used(limit, s, at) == 0 then
    return 0
  end
  return until_end(limit, s, at)
end

function fixed.charge(limit, s, at, permits)
  local used = s and fixed.used(limit, s, at) or 0
  local start, stop = window_of(limit, s, at)
  used = math.min(used + math.min(permits, 2 * limit.size), 2 * limit.size)
  return { used = used, start = start, length = stop - start }
end

function fixed.refund(limit, s, at, permits)
  local used = fixed.used(limit, s, at)
  local given = math.min(permits, used)
  if given >= used then
    return nil, given
  end
  return { used = used - given, start = s.start, length = s.length }, given
end

function fixed.ahead(limit, s, at)
  if limit.mode ~= 0 then
    return s.start > at.now
  end
  local start = window_of(limit, nil, at)
  return s.start > start
end

function fixed.rebase(limit, s, at)
  if limit.mode == 1 and not at.start then
    return { used = s.used, start = at.now, length = s.length }
  end
  local start, stop = window_of(limit, nil, at)
  return { used = s.used, start = start, length = stop - start }
end

-- A first-hit window that is not over keeps its start, however often the limit changes.
function fixed.carry(limit, old, s, at, used)
  local previous = nil
  if old.mode == 2 and limit.mode == 2 then
    previous = s
  end
  local start, stop = window_of(limit, previous, at)
  return { used = used, start = start, length = stop - start }
end

-- token-bucket and leaky-bucket. docs/understand/algorithms.md, "Bucket" and "Queue".
--
-- limit: tick (us), permit (units), drain (units per tick), size (permits), queue (0 or 1)
-- state: units, at (tick), last (units of the latest charge)

local bucket = { format = '<ddddBdddd', unused = { units = 0, at = 0, last = 0 } }
algorithms[1] = bucket

function bucket.limit(next)
  local limit = {
    tick = next('tick', 1),
    permit = next('permit', 1),
    drain = next('drain'),
    size = next('size', 0, WHOLE),
    queue = next('queue', 0, 1),
  }
  limit.capacity = limit.size
  limit.full = limit.size * limit.permit
  -- A bucket of size 0 may have a drain of 0.
  if limit.full > WHOLE or limit.drain == 0 and limit.size > 0 then
    fail('bad number for ' .. (limit.full > WHOLE and 'size' or 'drain'))
  end
  return limit
end

function bucket.pack(limit, s, stamp)
  return struct.pack(bucket.format, limit.tick, limit.permit, limit.drain, limit.size, limit.queue,
    s.units, s.at, s.last, stamp)
end

function bucket.unpack(value, from)
  local tick, permit, drain, size, queue, units, at, last, stamp, next_byte =
    struct.unpack(bucket.format, value, from)
  local limit = { tick = tick, permit = permit, drain = drain, size = size, queue = queue }
  limit.capacity = size
  limit.full = size * permit
  return limit, { units = units, at = at, last = last }, next_byte, stamp
end

function bucket.same(a, b)
  return a.tick == b.tick and a.permit == b.permit and a.drain == b.drain and a.size == b.size
    and a.queue == b.queue
end

function bucket.recovery(limit)
  return ceil_div(limit.full, limit.drain) * limit.tick
end

local function units_of(limit, permits)
  return math.min(permits, 2 * limit.size) * limit.permit
end

local function level(limit, s, tick)
  local passed = tick - s.at
  if passed <= 0 then
    return s.units
  end
  if passed >= ceil_div(s.units, limit.drain) then
    return 0
  end
  return s.units - passed * limit.drain
end

-- The span until the bucket is down to `units`; it must be above that now.
local function until_level(limit, s, units, now)
  return until_tick(s.at, ceil_div(s.units - units, limit.drain), limit.tick, now)
end

function bucket.used(limit, s, at)
  return ceil_div(level(limit, s, floor_div(at.now, limit.tick)), limit.permit)
end

function bucket.wait(limit, s, at, permits)
  local room_at = limit.full - units_of(limit, permits)
  if level(limit, s, floor_div(at.now, limit.tick)) <= room_at then
    return 0
  end
  return until_level(limit, s, room_at, at.now)
end

function bucket.reset_after(limit, s, at)
  return until_level(limit, s, 0, at.now)
end

function bucket.delay(limit, s, at)
  if limit.queue == 0 then
    return 0
  end
  return until_level(limit, s, 0, at.now)
end

function bucket.charge(limit, s, at, permits)
  local tick = floor_div(at.now, limit.tick)
  local found, from = 0, 0
  if s then
    found, from = level(limit, s, tick), s.at
  end
  local start = tick
  if found < limit.drain then
    start = ceil_div(at.now, limit.tick)
  end
  local added = math.min(units_of(limit, permits), 2 * limit.full - found)
  return { units = found + added, at = math.max(from, start), last = added }
end

function bucket.refund(limit, s, at, permits)
  local found = level(limit, s, floor_div(at.now, limit.tick))
  local most = found
  if limit.queue == 1 then
    most = math.min(found, s.last)
  end
  local given = math.min(units_of(limit, permits), most)
  local back = ceil_div(given, limit.permit)
  if given >= found then
    return nil, back
  end
  return { units = s.units - given, at = s.at, last = math.max(0, s.last - given) }, back
end

-- A charge may be stamped with the next tick; that is not a clock step.
function bucket.ahead(limit, s, at)
  return s.at > floor_div(at.now, limit.tick) + 1
end

function bucket.rebase(limit, s, at)
  return { units = s.units, at = ceil_div(at.now, limit.tick), last = s.last }
end

function bucket.carry(limit, old, s, at)
  local tick = floor_div(at.now, old.tick)
  local units = level(old, s, tick)
  if old.permit ~= limit.permit then
    units = mul_div_ceil(units, limit.permit, old.permit, limit.full)
  end
  units = math.min(units, limit.full)
  if units == 0 then
    return nil
  end
  local drains_from = math.min(math.max(tick, s.at) * old.tick, at.now)
  return { units = units, at = ceil_div(drains_from, limit.tick), last = 0 }
end

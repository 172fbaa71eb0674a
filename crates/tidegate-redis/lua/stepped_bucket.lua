-- token-bucket .. every. docs/understand/algorithms.md, "Steps".
--
-- limit: every (us), amount (permits per step), size (permits)
-- state: used (permits), step

local steps = { format = '<dddddd', unused = { used = 0, step = 0 } }
algorithms[2] = steps

function steps.limit(next)
  local limit = { every = next('every', 1), amount = next('amount'), size = next('size', 0, WHOLE) }
  limit.capacity = limit.size
  if limit.amount == 0 and limit.size > 0 then
    fail('bad number for amount')
  end
  return limit
end

function steps.pack(limit, s, stamp)
  return struct.pack(steps.format, limit.every, limit.amount, limit.size, s.used, s.step, stamp)
end

function steps.unpack(value, from)
  local every, amount, size, used, step, stamp, next_byte =
    struct.unpack(steps.format, value, from)
  return { every = every, amount = amount, size = size, capacity = size },
    { used = used, step = step }, next_byte, stamp
end

function steps.same(a, b)
  return a.every == b.every and a.amount == b.amount and a.size == b.size
end

function steps.recovery(limit)
  return ceil_div(limit.size, limit.amount) * limit.every
end

local function until_used(limit, s, used, now)
  return until_tick(s.step, ceil_div(s.used - used, limit.amount), limit.every, now)
end

function steps.used(limit, s, at)
  local passed = floor_div(at.now, limit.every) - s.step
  if passed <= 0 then
    return s.used
  end
  if passed >= ceil_div(s.used, limit.amount) then
    return 0
  end
  return s.used - passed * limit.amount
end

function steps.wait(limit, s, at, permits)
  local room_at = limit.size - permits
  if steps.used(limit, s, at) <= room_at then
    return 0
  end
  return until_used(limit, s, room_at, at.now)
end

function steps.reset_after(limit, s, at)
  return until_used(limit, s, 0, at.now)
end

function steps.charge(limit, s, at, permits)
  local used = s and steps.used(limit, s, at) or 0
  used = math.min(used + math.min(permits, 2 * limit.size), 2 * limit.size)
  return { used = used, step = floor_div(at.now, limit.every) }
end

function steps.refund(limit, s, at, permits)
  local used = steps.used(limit, s, at)
  local given = math.min(permits, used)
  if given >= used then
    return nil, given
  end
  return { used = used - given, step = floor_div(at.now, limit.every) }, given
end

function steps.ahead(limit, s, at)
  return s.step > floor_div(at.now, limit.every)
end

function steps.rebase(limit, s, at)
  return { used = s.used, step = floor_div(at.now, limit.every) }
end

-- A limit's answer, and the future of a state if nobody comes: holds end, consumption recovers.

local forecast = {}

function forecast.used(part, s, at)
  return s and part.alg.used(part.limit, s, at) or 0
end

-- Another instant, in the calendar window that the client sent for it. Beyond those that were sent,
-- a later one is taken to lie in a window that begins where this one ends, an earlier one in the
-- window before.
local function moved_to(at, now)
  local start, stop = at.start, at.stop
  local bounds = at.bounds or {}
  for i = 2, #bounds do
    if bounds[i - 1] <= now and now < bounds[i] then
      return { now = now, start = bounds[i - 1], stop = bounds[i], bounds = bounds }
    end
  end
  if start and now < start then
    start, stop = math.min(math.max(0, start - (stop - start)), now), start
  elseif start and now >= stop then
    start, stop = stop, now + (stop - start)
  end
  return { now = now, start = start, stop = stop, bounds = at.bounds }
end

-- Charges a hold that ends, to a view that may be changed.
local function charge_end(part, s, at, item)
  if item.expiry == CHARGE and part.limit.capacity > 0 then
    return part.alg.charge(part.limit, s, at, item.cost, '', part.keys)
  end
  return s
end

local function own(part, s)
  return s and part.alg.copy and part.alg.copy(s) or s
end

-- What is used and held when the holds that have ended are gone or charged, unwritten. Where they
-- have to be looked at, `more` says that there are too many: the rest is taken to be held yet.
function forecast.ended(part)
  local h, now = part.h, part.at.now
  local e = { s = part.s, held = h.held, charging = h.charging, count = h.count, more = h.late }
  e.cursor = beginning(h)
  if h.over then
    return e
  end
  e.more = false
  if h.alike and h.charging == 0 and h.len > 0 then
    local n = holds.count_ended(h, now)
    e.cursor.i, e.count, e.held = n, h.count - n, h.held - n * h.each
    return e
  end
  local looked_at = 0
  local item, cursor = next_hold(h, e.cursor)
  if item and ended(item, now) then
    e.s = own(part, part.s)
  end
  while item and ended(item, now) do
    if looked_at == ENDS then
      e.more = true
      break
    end
    looked_at = looked_at + 1
    local at = moved_to(part.at, item.deadline)
    if h.late and e.s and part.alg.ahead(part.limit, e.s, at) then
      at = part.at -- it ended before what was charged meanwhile, and is charged behind that
    end
    e.s = charge_end(part, e.s, at, item)
    e.held, e.count = e.held - item.cost, e.count - 1
    e.charging = e.charging - (item.expiry == CHARGE and 1 or 0)
    e.cursor = cursor
    item, cursor = next_hold(h, cursor)
  end
  return e
end

-- The same, looked at once in a call.
local function ended_of(part)
  if part.h.over then
    return forecast.ended(part)
  end
  part.ended = part.ended or forecast.ended(part)
  return part.ended
end

-- Makes it so in the part, and forgets a state of which nothing is used.
function forecast.expire(part)
  local h = part.h
  if holds.any(h) and not h.over then
    local e = ended_of(part)
    for j = h.place, e.cursor.j do
      h.gone[h.new[j].member] = true
    end
    part.s, h.held, h.count, h.charging = e.s, e.held, e.count, e.charging
    h.first, h.place = e.cursor.i, e.cursor.j + 1
    h.late, h.over = e.more, true
  end
  if part.s and forecast.used(part, part.s, part.at) == 0 then
    part.s = nil
  end
end

-- One step into the future: the next hold ends.
local function let_end(view, item, cursor)
  local next = { part = view.part, s = view.s, h = view.h, cursor = cursor, owned = true }
  if not view.owned then
    next.s = own(view.part, view.s)
  end
  next.held = view.held - item.cost
  next.at = moved_to(view.at, math.max(item.deadline, view.at.now))
  next.s = charge_end(view.part, next.s, next.at, item)
  return next
end

local function next_of(view)
  if not view.h then
    return nil
  end
  return next_hold(view.h, view.cursor)
end

-- The part as it is at this instant, unwritten.
function forecast.view(part)
  local view = { part = part, s = part.s, at = part.at, held = 0 }
  if holds.any(part.h) then
    local e = ended_of(part)
    view.s, view.h, view.held, view.cursor = e.s, part.h, e.held, e.cursor
    view.charging, view.count = e.charging, e.count
  end
  return view
end

-- How long until `permits` fit; -1 if they never do. Beyond FAR holds, no longer than that.
function forecast.wait(view, permits)
  local part, start = view.part, view.at.now
  local capacity = part.limit.capacity
  if permits > capacity then
    return -1
  end
  for _ = 1, FAR do
    local wanted = permits + view.held
    local fits = nil
    if wanted <= capacity then
      fits = view.s and part.alg.wait(part.limit, view.s, view.at, wanted) or 0
      fits = math.min(view.at.now - start + fits, MAX)
    end
    local item, cursor = next_of(view)
    if item and item.deadline >= MAX then
      item = nil
    end
    if fits and (not item or fits <= math.max(0, item.deadline - start)) then
      return fits
    end
    if not item then
      return MAX
    end
    view = let_end(view, item, cursor)
  end
  return view.at.now - start
end

-- How long until nothing is used or held. Beyond ENDS holds, if any will be charged, no less.
function forecast.reset_after(view)
  local part, start = view.part, view.at.now
  local far = view.h and (view.charging == 0 or view.count > ENDS)
  if far and view.count > 0 then
    local last = holds.last_deadline(view.h, view.cursor)
    if last and last >= MAX then
      return MAX
    end
    local at = moved_to(view.at, math.max(last or start, start))
    local s = view.s
    if view.charging > 0 then
      -- At the worst all of them leave as much debt as there can be, and the last one does.
      s = charge_end(part, own(part, s), at, { expiry = CHARGE, cost = 2 * part.limit.capacity })
    end
    view = { part = part, s = s, at = at }
  end
  local item, cursor = next_of(view)
  while item do
    if item.deadline >= MAX then
      return MAX
    end
    view = let_end(view, item, cursor)
    item, cursor = next_of(view)
  end
  local rest = 0
  if view.s then
    rest = part.alg.reset_after(part.limit, view.s, view.at)
  end
  return math.min(view.at.now - start + rest, MAX)
end

-- The verdict on `cost`: allowed, retry_after (-1 never), delay, remaining, reset_after, used, held.
function forecast.look(part, cost)
  local view = forecast.view(part)
  local used = forecast.used(part, view.s, view.at)
  local capacity = part.limit.capacity
  local remaining = math.max(0, capacity - used - view.held)
  local allowed = used <= capacity
  if cost > 0 then
    allowed = cost <= remaining
  end
  local delay = 0
  if allowed and cost > 0 and view.s and part.alg.delay then
    delay = part.alg.delay(part.limit, view.s, view.at)
  end
  local retry = allowed and cost > 0 and 0 or forecast.wait(view, math.max(cost, 1))
  if not allowed and retry == 0 then
    retry = 1 -- what has ended and is not counted yet will be by the next call
  end
  return { allowed, retry, delay, remaining, forecast.reset_after(view), used, view.held }
end

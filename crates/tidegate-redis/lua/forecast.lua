-- The verdict of a limit, and the future of a state without further calls: holds end, usage
-- recovers.
--
-- A part has the entry that decides: kind, alg, limit, s and at. `others` are the entries of other
-- limits of the same key, nil for none; `own` is the entry of a limit that comes with the call, if
-- the call is charged. `limit.capacity` is what may be used; it differs from `limit.size` if a call
-- with another limit is decided by this entry.

local forecast = {}

-- Replaces the state of every entry by what `f` returns. Logs share one state.
local function update(part, f, ...)
  part.s = f(part, ...)
  if not part.others then
    return
  end
  local history = part.kind == 4 and part
  for _, other in ipairs(part.others) do
    if other.kind == 4 and history then
      other.s = history.s
    else
      other.s = f(other, ...)
      history = history or other.kind == 4 and other
    end
  end
end

function forecast.used(part, s, at)
  return s and part.alg.used(part.limit, s, at) or 0
end

-- Another instant, in the calendar window that the client sent for it. Outside the windows that
-- were sent, a later instant is assumed to be in a window that starts at the end of this one, an
-- earlier one in the window before.
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

-- Charges a hold that ends. Changes `s`. A limit of 0 counts nothing, but other limits may count
-- the list of a log.
local function charge_end(part, s, at, item)
  if item.expiry == CHARGE and (part.limit.size > 0 or part.kind == 4) then
    return part.alg.charge(part.limit, s, at, item.cost, '', part.keys)
  end
  return s
end

local function copy_of(part, s)
  return s and part.alg.copy and part.alg.copy(s) or s
end

-- The part after its ended holds are released or charged, without writing it. If they must be read
-- one by one, `more` means that there are too many: the rest still counts as held.
function forecast.ended(part)
  local h, now = part.h, part.at.now
  local e = { s = part.s, held = h.held, charging = h.charging, count = h.count, more = h.late }
  e.cursor = first_cursor(h)
  if h.over then
    return e
  end
  e.more = false
  if h.alike and h.charging == 0 and h.len > 0 then
    local n = holds.count_ended(h, now)
    e.cursor.i, e.count, e.held = n, h.count - n, h.held - n * h.each
    return e
  end
  local read = 0
  local item, cursor = next_hold(h, e.cursor)
  if item and ended(item, now) then
    e.s = copy_of(part, part.s)
  end
  while item and ended(item, now) do
    if read == ENDS then
      e.more = true
      break
    end
    read = read + 1
    local at = moved_to(part.at, item.deadline)
    if h.late and e.s and part.alg.ahead(part.limit, e.s, at) then
      at = part.at -- it ended before later charges, and is charged after them
    end
    e.s = charge_end(part, e.s, at, item)
    e.held, e.count = e.held - item.cost, e.count - 1
    e.charging = e.charging - (item.expiry == CHARGE and 1 or 0)
    e.cursor = cursor
    item, cursor = next_hold(h, cursor)
  end
  return e
end

-- The same, computed once per call.
local function ended_of(part)
  if part.h.over then
    return forecast.ended(part)
  end
  part.ended = part.ended or forecast.ended(part)
  return part.ended
end

local function ended_state(entry)
  return ended_of(entry).s
end

-- The state, or nil if nothing of it is used.
local function used_state(entry)
  local s = entry.s
  if not s then
    return nil
  elseif entry.kind == 4 then
    return log.used_state(s, entry.at)
  end
  return entry.alg.used(entry.limit, s, entry.at) > 0 and s or nil
end

-- Applies that to all entries, and drops states without usage.
function forecast.expire(part)
  local h = part.h
  if holds.any(h) and not h.over then
    local e = ended_of(part)
    for _, other in ipairs(part.others or {}) do
      other.h = h
    end
    update(part, ended_state)
    for j = h.place, e.cursor.j do
      h.gone[h.new[j].member] = true
    end
    h.held, h.count, h.charging = e.held, e.count, e.charging
    h.first, h.place = e.cursor.i, e.cursor.j + 1
    h.late, h.over = e.more, true
  end
  update(part, used_state)
end

-- The view after the end of its next hold.
local function after_end(view, item, cursor)
  local next = { part = view.part, s = view.s, h = view.h, cursor = cursor, owned = true }
  if not view.owned then
    next.s = copy_of(view.part, view.s)
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

-- The part at this instant, without writing it.
function forecast.view(part)
  local view = { part = part, s = part.s, at = part.at, held = 0 }
  if holds.any(part.h) then
    local e = ended_of(part)
    view.s, view.h, view.held, view.cursor = e.s, part.h, e.held, e.cursor
    view.charging, view.count = e.charging, e.count
  end
  return view
end

-- The span until `permits` fit; -1 if they never do. With more than FAR holds, a lower bound.
function forecast.wait(view, permits)
  local part, start = view.part, view.at.now
  local capacity, size = part.limit.capacity, part.limit.size
  if permits > capacity then
    return permits <= (part.own_capacity or 0) and part.next_free or -1
  end
  for _ = 1, FAR do
    local wanted = permits + view.held
    local fits = nil
    if wanted <= capacity then
      local from_size = math.max(wanted + size - capacity, -size)
      fits = view.s and part.alg.wait(part.limit, view.s, view.at, from_size) or 0
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
    view = after_end(view, item, cursor)
  end
  return view.at.now - start
end

-- The permits that are left.
function forecast.remaining(view)
  local used = forecast.used(view.part, view.s, view.at)
  return math.max(0, view.part.limit.capacity - used - view.held)
end

-- How the part recovers: calls `f` with a span (-1 never) and the permits that fit then, at most 32
-- times. Tidegate computes the same in memory: `Forecast::recovery`.
function forecast.recovery(view, f)
  local start, capacity = view.at.now, view.part.limit.capacity
  local fits, points = forecast.remaining(view), 0
  local step = math.max(1, math.ceil((capacity - fits) / 32))
  while fits < capacity and points < 32 do
    local span = forecast.wait(view, math.min(fits + step, capacity))
    if span >= 0 and span < MAX then
      local now = view.at.now + span
      local item, cursor = next_of(view)
      while item and item.deadline <= now do
        view = after_end(view, item, cursor)
        item, cursor = next_of(view)
      end
      view = copy(view)
      view.at, view.owned = moved_to(view.at, now), false
      fits, points = forecast.remaining(view), points + 1
      f(now - start, fits)
    elseif step > 1 then
      step = 1
    else
      f(-1, capacity)
      return
    end
  end
end

-- The span until nothing is used or held. With more than ENDS holds, of which any will be charged,
-- an upper bound.
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
      -- In the worst case the last one leaves the largest possible debt.
      s = charge_end(part, copy_of(part, s), at, { expiry = CHARGE, cost = 2 * part.limit.size })
    end
    view = { part = part, s = s, at = at }
  end
  local item, cursor = next_of(view)
  while item do
    if item.deadline >= MAX then
      return MAX
    end
    view = after_end(view, item, cursor)
    item, cursor = next_of(view)
  end
  local rest = 0
  if view.s then
    rest = part.alg.reset_after(part.limit, view.s, view.at)
  end
  return math.min(view.at.now - start + rest, MAX)
end

-- The delay that a queue assigns.
function forecast.delay(entry, s)
  return s and entry.alg.delay and entry.alg.delay(entry.limit, s, entry.at) or 0
end

-- The verdict on `cost`: allowed, retry_after (-1 never), delay, remaining, reset_after, used,
-- held. `is_first`: if it is allowed, `reset_after` is left out, since a charge follows.
function forecast.look(part, cost, is_first)
  local view = forecast.view(part)
  local used = forecast.used(part, view.s, view.at)
  local capacity = part.limit.capacity
  local remaining = math.max(0, capacity - used - view.held)
  local allowed = used <= capacity
  if cost > 0 then
    allowed = cost <= remaining
  end
  local delay = 0
  if allowed and cost > 0 then
    delay = forecast.delay(part.own or part, part.own and part.own.s or view.s)
  end
  local retry = allowed and cost > 0 and 0 or forecast.wait(view, math.max(cost, 1))
  if not allowed and retry == 0 then
    retry = 1 -- ended holds that are not counted yet will be counted by the next call
  end
  local resets = not (is_first and allowed) and forecast.reset_after(view)
  return { allowed, retry, delay, remaining, resets, used, view.held }
end

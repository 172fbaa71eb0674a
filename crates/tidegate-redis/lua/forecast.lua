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

-- One step into the future: the next hold ends.
local function let_end(view, item, cursor)
  local next = { part = view.part, s = view.s, h = view.h, cursor = cursor }
  next.held = view.held - item.cost
  next.at = moved_to(view.at, item.deadline)
  if item.expiry == CHARGE then
    next.s = view.part.alg.charge(view.part.limit, view.s, next.at, item.cost, '', view.part.keys)
  end
  return next
end

local function next_of(view)
  if not view.h then
    return nil
  end
  return next_hold(view.h, view.cursor)
end

-- The part as it is at this instant, with the holds that have ended gone or charged, unwritten.
function forecast.view(part)
  local h = holds.any(part.h) and part.h or nil
  local view = { part = part, s = part.s, h = h, cursor = { i = 0, j = 0 }, at = part.at }
  view.held = h and h.held or 0
  local item, cursor = next_of(view)
  while item and ended(item, part.at.now) do
    view = let_end(view, item, cursor)
    item, cursor = next_of(view)
  end
  view.at = part.at
  return view
end

-- How long until `permits` fit; -1 if they never do.
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
    if fits and (not item or fits <= item.deadline - start) then
      return fits
    end
    if not item then
      return MAX
    end
    view = let_end(view, item, cursor)
  end
  return view.at.now - start
end

-- How long until nothing is used or held.
function forecast.reset_after(view)
  local start = view.at.now
  local item, cursor = next_of(view)
  if item and view.h.charging == 0 then
    -- Nothing will be charged, so only the last to end matters.
    local last = nil
    for _, new in ipairs(view.h.new) do
      last = math.max(last or 0, new.deadline)
    end
    for i = view.h.len - 1, 0, -1 do
      local found = redis.call('ZRANGE', view.h.key, i, i, 'WITHSCORES')
      if not view.h.gone[found[1]] then
        last = math.max(last or 0, tonumber(found[2]))
        break
      end
    end
    if last and last >= MAX then
      return MAX
    end
    view = { part = view.part, s = view.s, at = moved_to(view.at, math.max(last or start, start)) }
  end
  while item and view.h do
    if item.deadline >= MAX then
      return MAX
    end
    view = let_end(view, item, cursor)
    item, cursor = next_of(view)
  end
  local rest = 0
  if view.s then
    rest = view.part.alg.reset_after(view.part.limit, view.s, view.at)
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
  local retry = forecast.wait(view, math.max(cost, 1))
  return { allowed, retry, delay, remaining, forecast.reset_after(view), used, view.held }
end

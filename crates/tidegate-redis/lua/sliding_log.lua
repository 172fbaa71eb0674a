-- sliding-log, and sliding-window as a log of sub-windows.
-- docs/understand/algorithms.md, "Sliding log".
--
-- limit: size (permits), grain (us), window (grains)
-- state: gone (running total up to which nothing counts), offset (us), total, newest (us)
--
-- The items are in a list with its own key, oldest first: instant and running total as two doubles,
-- then the caller, if there is one. With totals a binary search finds both the items that count
-- and the time when enough of them have expired. A list of short strings takes about 18 bytes for
-- each.
--
-- The list is the history of the key: all `limits` of a state count it, each in its own window and
-- with its own `gone`. Charges in the same sub-window of every limit are one item.
--
-- A state in this script is a view of the list, changed in place: `first` items are to be dropped
-- from the front, `last` replaces the last one, `extra` follow it. Only `flush` writes.

local log = { format = '<dddddddd', unused = { gone = {}, offset = 0, total = 0, newest = 0 } }
algorithms[4] = log

function log.limit(next)
  local limit = { size = next('size', 0, WHOLE), grain = next('grain', 1), window = next('window', 1) }
  limit.capacity = limit.size
  return limit
end

function log.pack(limit, s, stamp)
  return struct.pack(log.format, limit.size, limit.grain, limit.window, s.gone[limit] or 0,
    s.offset, s.total, s.newest, stamp)
end

local function new_view(keys, limits)
  local s = { gone = {}, offset = 0, total = 0, newest = 0, first = 0, extra = {}, len = 0 }
  s.list, s.stored, s.cache, s.limits = keys.log, keys.log_len, {}, limits
  return s
end

-- Without the key of the list, there is no state.
function log.unpack(value, from, keys)
  local size, grain, window, gone, offset, total, newest, stamp, next_byte =
    struct.unpack(log.format, value, from)
  local limit = { size = size, grain = grain, window = window, capacity = size }
  if not keys.log then
    return limit, nil, next_byte, stamp
  end
  if not keys.history then
    keys.log_len, keys.limits = redis.call('LLEN', keys.log), {}
    keys.history = new_view(keys, keys.limits)
    keys.history.len = keys.log_len
  end
  local s = keys.history
  table.insert(keys.limits, limit)
  s.gone[limit], s.offset, s.total, s.newest = gone, offset, total, newest
  s.base = math.min(s.base or gone, gone)
  if s.len == 0 and total > gone then
    -- The items were evicted. One item at the newest instant is the safe guess: it expires last.
    s.extra[1] = { instant = newest, total = total, caller = '' }
  end
  return limit, s, next_byte, stamp
end

function log.same(a, b)
  return a.size == b.size and a.grain == b.grain and a.window == b.window
end

function log.recovery(limit)
  return limit.window * limit.grain
end

local function item(s, i)
  if i >= s.len then
    return s.extra[i - s.len + 1]
  end
  if s.last and i == s.len - 1 then
    return s.last
  end
  local found = s.cache[i]
  if not found then
    local packed = redis.call('LINDEX', s.list, i)
    if not packed then
      fail('entries of a log are missing')
    end
    local instant, total = struct.unpack('<dd', packed)
    found = { instant = instant, total = total, caller = string.sub(packed, 17) }
    s.cache[i] = found
  end
  return found
end

local function count(s)
  return s.len + #s.extra
end

-- The first item, from `first` on, for which `is` is true; it is true for all after it.
local function search(s, is)
  local low, high = s.first, count(s)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is(item(s, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- The running total up to which items no longer count for this limit.
local function gone(limit, s, at)
  local present = floor_div(at.now + s.offset, limit.grain)
  local counts_from = (present - limit.window + 1) * limit.grain
  if s.first >= count(s) or item(s, s.first).instant >= counts_from then
    return s.gone[limit]
  end
  local live = search(s, function(e)
    return e.instant >= counts_from
  end)
  return math.max(item(s, live - 1).total, s.gone[limit])
end

-- The span until an item of this instant expires.
local function until_gone(limit, s, instant, now)
  return until_tick(floor_div(instant, limit.grain), limit.window, limit.grain, now + s.offset)
end

-- The view without the items that count for no limit; nil if none is left.
local function trimmed(s)
  local up_to = s.total
  for _, limit in ipairs(s.limits) do
    up_to = math.min(up_to, s.gone[limit])
  end
  if up_to >= s.total then
    return nil
  end
  if up_to > s.base then
    s.base = up_to
    s.first = search(s, function(e)
      return e.total > up_to
    end)
  end
  return s
end

-- A copy of the view that can be changed independently.
function log.copy(s)
  local result = copy(s)
  result.extra, result.gone = copy(s.extra), copy(s.gone)
  return result
end

-- The same items in a new list, with `instant` of each, and totals that start again.
local function rewritten(s, instant)
  local result = log.copy(s)
  result.total, result.base, result.newest = s.total - s.base, 0, instant(s.newest)
  for limit, up_to in pairs(s.gone) do
    result.gone[limit] = up_to - s.base
  end
  result.len, result.cache, result.first, result.extra, result.last = 0, {}, 0, {}, nil
  for i = s.first, count(s) - 1 do
    local e = item(s, i)
    if e.total > s.base then
      table.insert(result.extra,
        { instant = instant(e.instant), total = e.total - s.base, caller = e.caller })
    end
  end
  return result
end

-- Version 1 stored the numbers of sub-windows: each becomes the end of it, but not after now.
function log.from_version_1(limit, s, now)
  if limit.grain == 1 then
    return s
  end
  now = now + s.offset
  return rewritten(s, function(number)
    local start = number * limit.grain
    return math.min(start + limit.grain - 1, math.max(start, now))
  end)
end

function log.used(limit, s, at)
  return s.total - gone(limit, s, at)
end

-- The view without what counts for no limit any more; nil if nothing does.
function log.used_state(s, at)
  local is_used = false
  for _, limit in ipairs(s.limits) do
    if log.used(limit, s, at) > 0 then
      is_used = true
    else
      s.gone[limit] = s.total
    end
  end
  return is_used and s or nil
end

function log.wait(limit, s, at, permits)
  local room_at = limit.size - permits
  if log.used(limit, s, at) <= room_at then
    return 0
  end
  local must_go = s.total - room_at
  local last = search(s, function(e)
    return e.total >= must_go
  end)
  return until_gone(limit, s, item(s, last).instant, at.now)
end

function log.reset_after(limit, s, at)
  if log.used(limit, s, at) == 0 then
    return 0
  end
  return until_gone(limit, s, s.newest, at.now)
end

-- Whether both instants are in one sub-window of every limit.
local function together(s, a, b)
  for _, limit in ipairs(s.limits) do
    if floor_div(a, limit.grain) ~= floor_div(b, limit.grain) then
      return false
    end
  end
  return true
end

function log.charge(limit, s, at, permits, caller, keys)
  local limits = s and s.limits or keys.limits or { limit }
  local largest = 0
  for _, each in ipairs(limits) do
    largest = math.max(largest, each.size)
    if s then
      s.gone[each] = gone(each, s, at)
    end
  end
  s = s and trimmed(s)
  local added = math.min(permits, 2 * largest)
  if added <= 0 then
    return s
  end
  if not s then
    s = new_view(keys, limits)
    s.base = 0
    for _, each in ipairs(limits) do
      s.gone[each] = 0
    end
  end
  if s.total + added > MAX then
    s = rewritten(s, function(instant)
      return instant
    end)
  end
  if limit.grain ~= 1 then
    caller = '' -- sub-windows store no callers, which would need one item each
  end
  local instant = math.max(at.now + s.offset, s.newest) -- after a rebase, in the same sub-window
  s.total, s.newest = s.total + added, instant
  local e = { instant = instant, total = s.total, caller = caller }
  local n = count(s)
  local before = n > s.first and item(s, n - 1)
  if not before or before.caller ~= caller or not together(s, before.instant, instant) then
    table.insert(s.extra, e)
  elseif #s.extra > 0 then
    s.extra[#s.extra] = e
  else
    s.last = e
  end
  -- The oldest are dropped: a hold that is settled in debt counts once the debt has expired.
  for _, each in ipairs(limits) do
    s.gone[each] = math.max(s.gone[each], s.total - 2 * each.size)
  end
  return trimmed(s)
end

function log.refund(limit, s, at, permits)
  local given
  for _, each in ipairs(s.limits) do
    local up_to = gone(each, s, at)
    local back = math.min(permits, s.total - up_to)
    s.gone[each] = up_to + back
    given = each == limit and back or given
  end
  return trimmed(s), given
end

-- Whether the clock has stepped back, for any limit that counts an item of the list.
function log.ahead(_, s, at)
  for _, limit in ipairs(s.limits) do
    if s.gone[limit] < s.total
        and floor_div(s.newest, limit.grain) > floor_div(at.now + s.offset, limit.grain) then
      return true
    end
  end
  return false
end

-- The newest sub-window begins again.
function log.rebase(_, s, at)
  local start = 0
  for _, limit in ipairs(s.limits) do
    if s.gone[limit] < s.total then
      start = math.max(start, floor_div(s.newest, limit.grain) * limit.grain)
    end
  end
  s.offset = start - at.now
  return s
end

-- One more limit counts the history: what counts under `source`, in its own window. Nothing is cut
-- to its capacity, unless that is 0.
function log.join(limit, source, s, at, limits)
  s = s and log.copy(s)
  if s then
    s.gone[limit] = limit.size > 0 and gone(source, s, at) or s.total
    s.limits = limits
    -- With a finer grain the newest item may be after now.
    s = log.ahead(limit, s, at) and log.rebase(limit, s, at) or s
  end
  return s
end

-- Calls `f` with the permits and the caller of each item that counts, oldest first.
function log.each(limit, s, at, most, f)
  local before = gone(limit, s, at)
  local first = search(s, function(e)
    return e.total > before
  end)
  for i = first, math.min(count(s), first + most) - 1 do
    local e = item(s, i)
    f(e.total - before, e.caller)
    before = e.total
  end
end

-- Writes the view back. A view without stored items replaces the list.
function log.flush(s)
  if s.len == 0 and s.stored > 0 then
    redis.call('UNLINK', s.list)
  end
  local function packed(e)
    return struct.pack('<dd', e.instant, e.total) .. e.caller
  end
  if s.last then
    redis.call('LSET', s.list, -1, packed(s.last))
  end
  local packed_items = {}
  for i = math.max(1, s.first - s.len + 1), #s.extra do
    table.insert(packed_items, packed(s.extra[i]))
    if #packed_items == 500 or i == #s.extra then
      redis.call('RPUSH', s.list, unpack(packed_items))
      packed_items = {}
    end
  end
  if s.first > 0 and s.len > 0 then
    redis.call('LTRIM', s.list, math.min(s.first, s.len), -1)
  end
end

-- sliding-log, and sliding-window as a log of sub-windows. docs/arithmetic.md, "Sliding log".
--
-- limit: size (permits), grain (us), window (grains)
-- state: gone (running total up to which nothing counts), offset (us), total, newest (grain)
--
-- The entries lie in a list beside the state, oldest first: grain and running total as two doubles,
-- then who it was, if somebody said so. Totals let a binary search find both what is live and when
-- enough will have left; a list of small strings takes about 18 bytes for each.
--
-- A state in this script is a view of the list, changed in place: `first` entries are to be dropped
-- from the front, `last` replaces the last one, `extra` come behind it. Only `flush` writes.

local log = { format = '<ddddddd', unused = { gone = 0, offset = 0, total = 0, newest = 0 } }
algorithms[4] = log

function log.limit(next)
  local limit = { size = next('size', 0, WHOLE), grain = next('grain', 1), window = next('window', 1) }
  limit.capacity = limit.size
  return limit
end

function log.pack(limit, s)
  return struct.pack(log.format, limit.size, limit.grain, limit.window, s.gone, s.offset, s.total,
    s.newest)
end

function log.unpack(value, from, keys)
  local size, grain, window, gone, offset, total, newest, behind =
    struct.unpack(log.format, value, from)
  local s = { gone = gone, offset = offset, total = total, newest = newest, first = 0, extra = {} }
  keys.log_len = redis.call('LLEN', keys.log)
  s.list, s.len, s.stored, s.cache = keys.log, keys.log_len, keys.log_len, {}
  if s.len == 0 and total > gone then
    -- Somebody evicted the entries. All as the newest is the safe guess: it leaves last.
    s.extra[1] = { grain = newest, total = total, who = '' }
  end
  return { size = size, grain = grain, window = window, capacity = size }, s, behind
end

function log.same(a, b)
  return a.size == b.size and a.grain == b.grain and a.window == b.window
end

local function entry(s, i)
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
    local grain, total = struct.unpack('<dd', packed)
    found = { grain = grain, total = total, who = string.sub(packed, 17) }
    s.cache[i] = found
  end
  return found
end

local function count(s)
  return s.len + #s.extra
end

-- The first entry, from `first` on, for which `is` holds; it holds for all behind it.
local function search(s, is)
  local low, high = s.first, count(s)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is(entry(s, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- The running total up to which nothing counts any more.
local function gone(limit, s, at)
  local cut = floor_div(at.now + s.offset, limit.grain) - limit.window
  if s.first >= count(s) or entry(s, s.first).grain > cut then
    return s.gone
  end
  local live = search(s, function(e)
    return e.grain > cut
  end)
  return math.max(entry(s, live - 1).total, s.gone)
end

-- The span until an entry of this grain leaves the window.
local function until_gone(limit, s, grain, now)
  return until_tick(grain, limit.window, limit.grain, now + s.offset)
end

-- The view without what is gone; nil if that is everything.
local function trimmed(s, up_to)
  if up_to >= s.total then
    return nil
  end
  if up_to > s.gone then
    s.first = search(s, function(e)
      return e.total > up_to
    end)
  end
  s.gone = up_to
  return s
end

-- A view of its own, to be changed without changing this one.
function log.copy(s)
  local twin = copy(s)
  twin.extra = copy(s.extra)
  return twin
end

-- Totals that would leave the range of exact numbers begin anew. Only sub-windows come here.
local function renumbered(s)
  local twin = { gone = 0, offset = s.offset, total = s.total - s.gone, newest = s.newest }
  twin.list, twin.len, twin.stored, twin.cache = s.list, 0, s.stored, {}
  twin.first, twin.extra = 0, {}
  for i = s.first, count(s) - 1 do
    local e = entry(s, i)
    table.insert(twin.extra, { grain = e.grain, total = e.total - s.gone, who = e.who })
  end
  return twin
end

function log.used(limit, s, at)
  return s.total - gone(limit, s, at)
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
  return until_gone(limit, s, entry(s, last).grain, at.now)
end

function log.reset_after(limit, s, at)
  return until_gone(limit, s, s.newest, at.now)
end

function log.charge(limit, s, at, permits, who, keys)
  s = s and trimmed(s, gone(limit, s, at))
  if not s then
    s = { gone = 0, offset = 0, total = 0, newest = 0, first = 0, extra = {}, len = 0, cache = {} }
    s.list, s.stored = keys.log, keys.log_len
  end
  local added = math.min(permits, 2 * limit.size)
  if added <= 0 then
    return s
  end
  if s.total + added > MAX then
    s = renumbered(s)
  end
  if limit.grain ~= 1 then
    who = '' -- sub-windows keep no names, or each would have an entry of its own
  end
  local grain = floor_div(at.now + s.offset, limit.grain)
  s.total, s.newest = s.total + added, grain
  local e = { grain = grain, total = s.total, who = who }
  local n = count(s)
  local joins = n > s.first and entry(s, n - 1).grain == grain and entry(s, n - 1).who == who
  if not joins then
    table.insert(s.extra, e)
  elseif #s.extra > 0 then
    s.extra[#s.extra] = e
  else
    s.last = e
  end
  -- The oldest make room: a hold that is settled in debt counts when the debt has left.
  return trimmed(s, math.max(s.gone, s.total - 2 * limit.size))
end

function log.refund(limit, s, at, permits)
  local up_to = gone(limit, s, at)
  local given = math.min(permits, s.total - up_to)
  return trimmed(s, up_to + given), given
end

function log.ahead(limit, s, at)
  return s.newest > floor_div(at.now + s.offset, limit.grain)
end

function log.rebase(limit, s, at)
  s.offset = s.newest * limit.grain - at.now
  return s
end

function log.carry(limit, old, s, at)
  s = trimmed(log.copy(s), gone(old, s, at))
  if not s then
    return nil
  end
  if limit.grain ~= old.grain then
    local offset = s.offset
    s = renumbered(s)
    s.offset = 0
    for _, e in ipairs(s.extra) do
      -- At the end of its old grain, so that none leaves too early.
      local ends = math.max(0, (e.grain + 1) * old.grain - 1 - offset)
      e.grain = floor_div(math.min(ends, at.now), limit.grain)
      s.newest = e.grain
    end
  end
  local up_to = math.max(s.gone, s.total - limit.size)
  return trimmed(s, math.max(up_to, gone(limit, s, at)))
end

-- Calls `f` with the permits of each entry that counts and with who it was, oldest first.
function log.each(limit, s, at, most, f)
  local before = gone(limit, s, at)
  local first = search(s, function(e)
    return e.total > before
  end)
  for i = first, math.min(count(s), first + most) - 1 do
    local e = entry(s, i)
    f(e.total - before, e.who)
    before = e.total
  end
end

-- Writes the view back. A view of no stored entries replaces whatever is there.
function log.flush(s)
  if s.len == 0 and s.stored > 0 then
    redis.call('UNLINK', s.list)
  end
  local function packed(e)
    return struct.pack('<dd', e.grain, e.total) .. e.who
  end
  if s.last then
    redis.call('LSET', s.list, -1, packed(s.last))
  end
  local behind = {}
  for i = math.max(1, s.first - s.len + 1), #s.extra do
    table.insert(behind, packed(s.extra[i]))
    if #behind == 500 or i == #s.extra then
      redis.call('RPUSH', s.list, unpack(behind))
      behind = {}
    end
  end
  if s.first > 0 and s.len > 0 then
    redis.call('LTRIM', s.list, math.min(s.first, s.len), -1)
  end
end

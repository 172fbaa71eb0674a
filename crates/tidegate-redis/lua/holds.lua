-- Holds: permits that are reserved and not yet charged. docs/understand/algorithms.md, "Decisions".
--
-- They are in a sorted set with its own key, by deadline. A member contains a sequence number, the
-- id, cost, ttl and expiry. The value of the state contains the sum of all members.
--
-- A table of holds in this script is a view of the set, changed in place: the `first` stored
-- members have ended, those in `gone` are to be removed, and `new` ones, by deadline and from
-- `place` on, to be written. Only `flush` writes.

local holds = {}
local CHARGE = 1 -- expiry: charged at the deadline; 0 is release
local BATCH = 32
local FAR = 250 -- how many holds a denial reads before it returns a lower bound
local ENDS = 100 -- how many holds end in one call, if each must be read
local DROPS = 2000 -- how many are dropped in one call, if none must be read
local MAX_ARGS = 500 -- arguments of one command

function holds.new(key)
  return { key = key, held = 0, latest = 0, charging = 0, seq = 0, len = 0, count = 0, first = 0,
    place = 1, gone = {}, new = {}, cache = {}, alike = true, late = false }
end

-- `alike`: all members have the same cost and are released, so that counting them is enough.
-- `late`: some have ended and have not been charged yet.
function holds.unpack(value, from, key, alike, late)
  local h = holds.new(key)
  h.held, h.latest, h.charging, h.seq = struct.unpack('<dddd', value, from)
  h.len = redis.call('ZCARD', key)
  h.count, h.alike, h.late = h.len, alike, late
  if h.len == 0 then
    -- They were evicted. Holds without a member would never end.
    h.held, h.charging = 0, 0
  elseif alike then
    h.each = h.held / h.len
    h.alike = h.each == math.floor(h.each)
  end
  return h
end

-- The sum is that of all members in the set, including those that have ended and are not dropped
-- yet.
function holds.pack(h)
  local left = math.max(0, h.first - DROPS)
  local held = h.held + (left > 0 and left * h.each or 0)
  return struct.pack('<dddd', held, h.latest, h.charging, h.seq)
end

function holds.any(h)
  return h ~= nil and h.held > 0
end

-- What a member says about its hold.
function holds.item(member, deadline)
  local seq, cost, ttl, expiry = struct.unpack('>I4ddB', member)
  return { member = member, deadline = tonumber(deadline), seq = seq, cost = cost, ttl = ttl,
    expiry = expiry }
end

local function stored(h, i)
  if not h.cache[i] then
    local batch = redis.call('ZRANGE', h.key, i, i + BATCH - 1, 'WITHSCORES')
    for j = 1, #batch, 2 do
      h.cache[i + (j - 1) / 2] = holds.item(batch[j], batch[j + 1])
    end
  end
  return h.cache[i]
end

-- The hold after `cursor`, in order of deadline, and the next cursor; nil if there is none.
local function next_hold(h, cursor)
  local old = nil
  local i = cursor.i
  while i < h.len do
    local item = stored(h, i)
    if not item then
      break
    end
    if not h.gone[item.member] then
      old = item
      break
    end
    i = i + 1
  end
  local new = h.new[cursor.j + 1]
  if old and (not new or old.deadline < new.deadline
      or old.deadline == new.deadline and old.seq < new.seq) then
    return old, { i = i + 1, j = cursor.j }
  end
  return new, { i = i, j = cursor.j + 1 }
end

-- The cursor before the first hold that has not ended, as far as the view knows.
local function first_cursor(h)
  return { i = h.first, j = h.place - 1 }
end

local function ended(item, now)
  return item.deadline <= now and item.deadline < MAX
end

-- The number of ended holds, for holds that are `alike`.
function holds.count_ended(h, now)
  local last = string.format('%.0f', math.min(now, MAX - 1))
  return redis.call('ZCOUNT', h.key, '-inf', last)
end

-- The latest deadline after `cursor`; nil if there is none.
function holds.last_deadline(h, cursor)
  local new = h.new[#h.new]
  local last = #h.new > cursor.j and new.deadline or nil
  for i = h.len - 1, cursor.i, -1 do
    local found = redis.call('ZRANGE', h.key, i, i, 'WITHSCORES')
    if not h.gone[found[1]] then
      return math.max(last or 0, tonumber(found[2]))
    end
  end
  return last
end

function holds.ahead(h, now)
  return holds.any(h) and h.latest > now
end

-- Limits each hold to its ttl from `now`. Every one is written again.
function holds.rebase(h, now)
  local cursor, item = first_cursor(h), nil
  local moved = {}
  repeat
    item, cursor = next_hold(h, cursor)
    if item then
      item.deadline = math.min(item.deadline, now + item.ttl)
      table.insert(moved, item)
    end
  until not item
  table.sort(moved, function(a, b)
    return a.deadline < b.deadline or a.deadline == b.deadline and a.seq < b.seq
  end)
  h.new, h.len, h.latest = moved, 0, now
end

function holds.add(h, id, cost, ttl, expiry, now)
  h.seq = h.seq + 1
  local member = struct.pack('>I4ddB', h.seq, cost, ttl, expiry) .. id
  local item = { member = member, deadline = math.min(now + ttl, MAX), seq = h.seq, cost = cost,
    ttl = ttl, expiry = expiry }
  local place = #h.new + 1
  while place > h.place and h.new[place - 1].deadline > item.deadline do
    place = place - 1
  end
  table.insert(h.new, place, item)
  if h.count == 0 and h.first <= DROPS then
    h.each, h.alike = cost, true -- it will be the only member
  end
  h.alike = h.alike and expiry ~= CHARGE and cost == h.each
  h.held, h.count = h.held + cost, h.count + 1
  h.charging = h.charging + (expiry == CHARGE and 1 or 0)
  h.latest = math.max(h.latest, math.max(0, item.deadline - ttl))
  return member
end

local function uncount(h, item)
  h.held, h.count = h.held - item.cost, h.count - 1
  h.charging = h.charging - (item.expiry == CHARGE and 1 or 0)
end

-- The hold of this member, and its place if it is new; nil if it is not there, or has ended.
function holds.find(h, member, now)
  local item, place
  for i = h.place, #h.new do
    if h.new[i].member == member then
      item, place = h.new[i], i
    end
  end
  local deadline = not item and h.len > 0 and not h.gone[member]
    and redis.call('ZSCORE', h.key, member)
  item = item or deadline and holds.item(member, deadline)
  if item and not ended(item, now) then
    return item, place
  end
end

-- Removes the hold of this member and returns it; nil if it is not there, or has ended.
function holds.remove(h, member, now)
  local item, place = holds.find(h, member, now)
  if not item then
    return nil
  end
  if place then
    table.remove(h.new, place)
  end
  h.gone[member] = true
  uncount(h, item)
  return item
end

-- Removes the holds that are released at their deadline. Holds that are charged stay: their permits
-- are in use.
function holds.release(h)
  if h.charging == 0 then
    h.held, h.count = 0, 0
    return
  end
  local cursor, item, stay = first_cursor(h), nil, {}
  repeat
    item, cursor = next_hold(h, cursor)
    if item and item.expiry == CHARGE then
      table.insert(stay, item)
    elseif item then
      h.gone[item.member] = true
      uncount(h, item)
    end
  until not item
  h.new, h.len, h.place = stay, 0, 1
end

-- Calls `f` with the items of `list`, MAX_ARGS at a time.
local function in_chunks(list, f)
  for i = 1, #list, MAX_ARGS do
    f(unpack(list, i, math.min(i + MAX_ARGS - 1, #list)))
  end
end

-- Writes the view back. Ended holds have the lowest ranks.
function holds.flush(h)
  if h.stale then
    redis.call('UNLINK', h.key)
  end
  local args = {}
  for i = h.place, #h.new do
    table.insert(args, string.format('%.0f', h.new[i].deadline))
    table.insert(args, h.new[i].member)
  end
  in_chunks(args, function(...)
    redis.call('ZADD', h.key, ...)
  end)
  if h.first > 0 then
    redis.call('ZREMRANGEBYRANK', h.key, 0, math.min(h.first, DROPS) - 1)
  end
  local gone = {}
  for member in pairs(h.gone) do
    table.insert(gone, member)
  end
  in_chunks(gone, function(...)
    redis.call('ZREM', h.key, ...)
  end)
end

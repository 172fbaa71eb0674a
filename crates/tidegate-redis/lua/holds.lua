-- Holds: permits that are set aside and not yet charged. docs/arithmetic.md, "Decisions".
--
-- They lie in a sorted set beside the state, by deadline. A member carries the order of granting,
-- the id, cost, ttl and what happens at the end; the state's value carries their sum.
--
-- A table of holds in this script is a view: `gone` members are to be removed, `new` ones to be
-- added. Only `flush` writes.

local holds = {}
local CHARGE = 1 -- expiry: charged at the deadline; 0 is released
local BATCH = 32
local FAR = 1000 -- how many holds a denial looks at before it settles for a lower bound

function holds.new(key)
  return { key = key, held = 0, latest = 0, charging = 0, seq = 0, len = 0, gone = {}, new = {},
    cache = {}, fresh = true }
end

function holds.unpack(value, from, key)
  local h = holds.new(key)
  h.fresh = false
  h.held, h.latest, h.charging, h.seq = struct.unpack('<dddd', value, from)
  h.len = redis.call('ZCARD', key)
  if h.len == 0 then
    -- Somebody evicted them. Nothing could ever end what is not there.
    h.held, h.charging = 0, 0
  end
  return h
end

function holds.pack(h)
  return struct.pack('<dddd', h.held, h.latest, h.charging, h.seq)
end

function holds.twin(h)
  local twin = copy(h)
  twin.gone, twin.new = copy(h.gone), {}
  for i, item in ipairs(h.new) do
    twin.new[i] = item
  end
  return twin
end

function holds.any(h)
  return h ~= nil and h.held > 0
end

local function item_of(member, deadline)
  local seq, cost, ttl, expiry = struct.unpack('>I4ddB', member)
  return { member = member, deadline = tonumber(deadline), seq = seq, cost = cost, ttl = ttl,
    expiry = expiry }
end

local function stored(h, i)
  if not h.cache[i] then
    local batch = redis.call('ZRANGE', h.key, i, i + BATCH - 1, 'WITHSCORES')
    for j = 1, #batch, 2 do
      h.cache[i + (j - 1) / 2] = item_of(batch[j], batch[j + 1])
    end
  end
  return h.cache[i]
end

-- The hold behind `cursor`, the next to end first; nil if there is none. Cursors are copied freely.
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

local function ended(item, now)
  return item.deadline <= now and item.deadline < MAX
end

function holds.ahead(h, now)
  return holds.any(h) and h.latest > now
end

-- Lets no hold last longer from `now` than it was granted for.
function holds.rebase(h, now)
  local twin = holds.twin(h)
  local cursor, item = { i = 0, j = 0 }, nil
  twin.new = {}
  repeat
    item, cursor = next_hold(h, cursor)
    if item then
      twin.gone[item.member] = true
      local again = copy(item)
      again.deadline = math.min(item.deadline, now + item.ttl)
      table.insert(twin.new, again)
    end
  until not item
  table.sort(twin.new, function(a, b)
    return a.deadline < b.deadline or a.deadline == b.deadline and a.seq < b.seq
  end)
  twin.latest, twin.moved = now, true
  return twin
end

function holds.add(h, id, cost, ttl, expiry, now)
  local twin = holds.twin(h)
  twin.seq = h.seq + 1
  local member = struct.pack('>I4ddB', twin.seq, cost, ttl, expiry) .. id
  local item = { member = member, deadline = math.min(now + ttl, MAX), seq = twin.seq, cost = cost,
    ttl = ttl, expiry = expiry }
  local place = 1
  while twin.new[place] and twin.new[place].deadline <= item.deadline do
    place = place + 1
  end
  table.insert(twin.new, place, item)
  twin.held = h.held + cost
  twin.charging = h.charging + (expiry == CHARGE and 1 or 0)
  twin.latest = math.max(h.latest, math.max(0, item.deadline - ttl))
  return twin, member
end

local function without(h, item)
  local twin = holds.twin(h)
  twin.gone[item.member] = true
  for i, new in ipairs(twin.new) do
    if new.member == item.member then
      table.remove(twin.new, i)
      break
    end
  end
  twin.held = h.held - item.cost
  twin.charging = h.charging - (item.expiry == CHARGE and 1 or 0)
  return twin
end

-- Without the hold of this member; nil if it is not there.
function holds.remove(h, member)
  for _, item in ipairs(h.new) do
    if item.member == member then
      return without(h, item), item
    end
  end
  local deadline = not h.gone[member] and redis.call('ZSCORE', h.key, member)
  if not deadline then
    return nil
  end
  local item = item_of(member, deadline)
  return without(h, item), item
end

-- Without those that would be released at their deadline. Those that are charged stay: what they
-- stand for is being spent.
function holds.release(h)
  local left = h
  local cursor, item = { i = 0, j = 0 }, nil
  repeat
    item, cursor = next_hold(h, cursor)
    if item and item.expiry ~= CHARGE then
      left = without(left, item)
    end
  until not item
  return left
end

-- Writes the view back.
function holds.flush(h)
  if h.fresh then
    redis.call('DEL', h.key)
  end
  local stays = {}
  for _, item in ipairs(h.new) do
    stays[item.member] = true
    local score = string.format('%.0f', item.deadline)
    redis.call('ZADD', h.key, score, item.member)
  end
  for member in pairs(h.gone) do
    if not stays[member] then
      redis.call('ZREM', h.key, member)
    end
  end
end

-- A set of more than MAX entries. All are counted once per interval, MAX at a time: each call
-- meanwhile counts a part and must be retried. Between two counts the stored number of remaining
-- permits is right, since it and the entries change together.
--
-- KEYS[6] the progress of a count, a hash    KEYS[7] the same of this client only
--   rate, interval   for which it is valid
--   top       one of the newest entries at its start; without it, the progress is outdated
--   last      the entry up to which the older ones are counted; empty when all are
--   step      number of entries per call
--   begun     number of entries at its start      seen   number of counted entries
--   sum       permits of the counted entries      empty  number of counted entries without permits
--   left      remaining permits at its start; empty if they were not known, and then they are not
--             known until all are counted
--   since     whether a client knew another rate: `same`, `changed` or `unknown`
--   owed      permits that the oldest entries must still lose for releases by Java

-- Entries that are removed in one call, which takes as long again as reading them.
local MAX_REMOVED = MAX / 2

local NUMBERS = { 'step', 'begun', 'seen', 'sum', 'empty', 'owed' }
local TEXTS = { 'rate', 'interval', 'top', 'last', 'left', 'since' }

local function read_count()
  local texts, numbers = redis.call('HMGET', count_key, unpack(TEXTS)), redis.call('HMGET', count_key, unpack(NUMBERS))
  local c = {}
  for i, name in ipairs(TEXTS) do
    c[name] = texts[i]
  end
  for i, name in ipairs(NUMBERS) do
    c[name] = numbers[i] and whole(numbers[i], 'a count of entries')
    if not c[name] then
      return nil
    end
  end
  return c.top and redis.call('ZSCORE', permits_key, c.top) and c
end

local function write_count(c)
  local args = {}
  for _, name in ipairs(TEXTS) do
    args[#args + 1], args[#args + 2] = name, c[name]
  end
  for _, name in ipairs(NUMBERS) do
    args[#args + 1], args[#args + 2] = name, digits(c[name])
  end
  redis.call('HSET', count_key, unpack(args))
  if c.left == '' and c.last ~= '' then
    -- If it expired, entries would seem to be lost.
    copy_ttl(count_key)
  else
    redis.call('PEXPIRE', count_key, digits(math.max(interval, 1000)))
  end
end

-- Counts the entries with these ranks.
local function add(c, from, to)
  local members = redis.call('ZRANGE', permits_key, from, to)
  for _, member in ipairs(members) do
    local permits = unpack_entry(member)
    c.sum = c.sum + permits
    c.empty = c.empty + (permits == 0 and 1 or 0)
  end
  c.seen = c.seen + #members
  return members
end

-- Starts a count. Counts both ends at once, so that concurrent writes do not matter: other clients
-- remove entries at one end and add them at the other.
local function begin(left, count, step, since_start)
  local half = math.floor(math.min(step, count) / 2)
  local c = { step = step, begun = count, seen = 0, sum = 0, empty = 0, owed = 0, since = since_start }
  c.rate, c.interval = digits(rate), digits(interval)
  c.top = add(c, count - half, -1)[1]
  c.last = add(c, 0, half - 1)[half]
  c.left = left and left <= rate and digits(left) or ''
  if c.left == '' then
    -- 0, until it is known.
    redis.call('SET', value_key, '0', 'KEEPTTL')
    keep()
  end
  write_count(c)
end

-- Counts the next entries. False if other clients removed entries that were not counted yet.
local function count_next(c)
  local from, to = redis.call('ZRANK', permits_key, c.last), redis.call('ZRANK', permits_key, c.top)
  if not from then
    return false
  end
  if from + 1 < to then
    local members = add(c, from + 1, math.min(from + c.step, to - 1))
    c.last = members[#members]
    return true
  end
  c.last = ''
  return c.seen >= c.begun
end

-- All entries are counted, so that the surplus at the start is known, which still exists. The
-- remaining permits are reduced by it at once. If Java has released it, the oldest entries return
-- it later.
local function finish(c, left, id)
  local start_left = c.left ~= '' and whole(c.left, 'the remaining permits')
  local surplus = (start_left or 0) + c.sum - rate
  if surplus > 0 or not start_left then
    left = left - surplus
  end
  since = c.since
  if surplus > 0 and start_left and was_released(start_left) then
    c.owed = surplus
  end
  local lost = 0
  if start_left and c.seen == c.begun then
    lost = math.max(0, -surplus)
  end
  settle({ gone = 0, lost = lost, left = left }, id)
  write_count(c)
end

-- Removes owed permits from the oldest entries. Returns the remaining permits, and the entries
-- read.
local function pay(c, left, id)
  local members = redis.call('ZRANGE', permits_key, 0, math.min(c.owed, MAX_REMOVED) - 1)
  local s = { gone = 0, lost = 0, left = left }
  for _, member in ipairs(members) do
    local permits = unpack_entry(member)
    local part = math.min(permits, c.owed)
    c.owed, s.left = c.owed - part, s.left + part
    if part < permits then
      s.cut = { member = member, permits = permits - part }
      break
    end
    s.gone = s.gone + 1
  end
  settle(s, id)
  write_count(c)
  return s.left, #members
end

-- The state of a large set, or nil after one step of a count that is not complete. `left` is the
-- stored number of remaining permits, `known` the same if it is valid.
local function look_in_chunks(left, known, count, id)
  local c = read_count()
  local changed = c and (c.rate ~= digits(rate) or c.interval ~= digits(interval))
  if not c or changed or not left or left > rate then
    return begin(known, count, MAX, changed and 'changed' or c and 'same' or since)
  end
  if c.last ~= '' then
    if not count_next(c) then
      return begin(known, count, c.step * 2, c.since)
    end
    if c.last ~= '' then
      return write_count(c)
    end
    return finish(c, left, id)
  end
  local released = left - (rate - (count - c.empty))
  if released > 0 then
    -- Each other entry has at least one permit, so Java has released at least this many. Counting
    -- again would never end if Java releases all the time.
    left, c.owed = left - released, c.owed + released
  end
  local paid = 0
  if c.owed > 0 then
    left, paid = pay(c, left, id)
    if c.owed > 0 then
      return nil
    end
  end
  local expired = count_expired()
  local most = math.min(expired, MAX_REMOVED - paid)
  local members = most > 0 and redis.call('ZRANGE', permits_key, 0, most - 1) or {}
  local s = { left = left, gone = #members, lost = 0, read = #members, progress = c }
  for _, member in ipairs(members) do
    s.left = s.left + unpack_entry(member)
  end
  if expired <= #members then
    return s
  end
  settle(s, id)
end

-- The corrected state, which `settle` writes. Writes nothing with MAX entries or fewer. Returns nil
-- if there are more and another call is needed. `mode` is `trust` if the stored number of remaining
-- permits is right as long as no entry has expired, or `whole`. `id` is for the entry of lost
-- permits.
local function look(mode, id)
  local text = redis.call('GET', value_key)
  local left = text and whole(text, 'the number of remaining permits')
  local begun = redis.call('HMGET', count_key, 'left', 'last')
  unknown = begun[1] == '' and begun[2] ~= ''
  local known = not unknown and left or nil
  local count = redis.call('ZCARD', permits_key)
  if count > MAX then
    return look_in_chunks(left, known, count, id)
  end
  if mode == 'trust' and known and known <= rate and count_expired() == 0 then
    return { left = known, gone = 0, lost = 0, read = 0, trust = known }
  end
  return count_all(known)
end

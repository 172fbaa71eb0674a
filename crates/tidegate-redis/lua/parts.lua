-- What a call is made of: limits on subjects. They are read, looked at, charged, and written back.
--
-- Whoever calls this sets `now`, and `keeps_limit` where it is about a hold.

local DAY_MS = 86400000
local MOST_PARTS = 64
local HAS_STATE, HAS_HOLDS, ALIKE, LATE = 1, 2, 4, 8
local A_LOG, ITS_HOLDS = 1, 2 -- what comes beside a state

local now
local is_test, keeps_limit = false, false

-- Words and keys, one after the other.

local position = 0
local function argument(name)
  position = position + 1
  local text = ARGV[position]
  if not text then
    fail('missing ' .. name)
  end
  return text
end
local function numeric(name, least, most)
  return number(argument(name), name, least, most)
end

local key_count = 0
local function key()
  key_count = key_count + 1
  return KEYS[key_count] or fail('missing keys')
end

local function no_more_words()
  if #KEYS ~= key_count or #ARGV ~= position then
    fail('another number of keys or arguments; see the head of the script\'s last file')
  end
end

-- The instant of the call: Redis's own, or that of a test.
local function read_instant()
  local instant = argument('instant')
  is_test = instant ~= ''
  return instant
end

-- The boundaries of the calendar's windows around now.
local function read_boundaries(rule)
  local count = numeric('boundaries')
  local follows = rule.kind == 3 and rule.limit.mode == 1
  if count == 1 or follows and count == 0 then
    fail('bad number for boundaries')
  end
  local bounds = {}
  for j = 1, count do
    bounds[j] = numeric('boundary', j > 1 and bounds[j - 1] + 1 or 0)
    if j > 1 and bounds[j - 1] <= now and now < bounds[j] then
      rule.at.start, rule.at.stop = bounds[j - 1], bounds[j]
    end
  end
  if count > 0 then
    rule.at.bounds = bounds
    if follows and rule.at.start then
      rule.limit.length = rule.at.stop - rule.at.start
    end
    return rule.at.start ~= nil
  end
  return true
end

-- A limit and the moment, as it sees it.
local function read_limit()
  local kind = numeric('algorithm')
  local alg = algorithms[kind]
  if not alg then
    fail('unknown algorithm')
  end
  local rule = { kind = kind, alg = alg, limit = alg.limit(numeric), at = { now = now } }
  rule.in_calendar = read_boundaries(rule)
  return rule
end

-- Does the limit only look on?
local function read_mode()
  local mode = argument('mode')
  if mode ~= '' and mode ~= 'shadow' then
    fail('unknown mode')
  end
  return mode == 'shadow'
end

-- The keys of the part behind those in `before`, all of one call.
local function read_keys(part, beside, before)
  local state = key()
  part.keys = { state = state, log_len = 0 }
  part.keys.log = beside % 2 == A_LOG and key() or nil
  part.keys.holds = beside >= ITS_HOLDS and key() or nil
  if part.kind == 4 and not part.keys.log or part.is_held and not part.keys.holds then
    fail('a log or a hold without its key')
  end
  for j = 1, #before do
    if before[j].keys.state == state then
      fail('two parts of one state; add their costs')
    end
  end
end

-- Reading: nothing is written before every key has been read.

-- What `old` has used, under the part's own limit.
local function carried(part, old)
  local used = math.min(forecast.used(old, old.s, old.at), part.limit.capacity)
  if not old.s or used == 0 then
    return nil
  end
  if old.kind == part.kind and part.alg.carry then
    local s, same = part.alg.carry(part.limit, old.limit, old.s, part.at, used)
    if same ~= false then
      return s
    end
  end
  return part.alg.charge(part.limit, nil, part.at, used, '', part.keys)
end

-- Answers what must come beside the state and did not; then nothing else has been read.
local function load(part)
  local value = redis.call('GET', part.keys.state)
  if not value then
    -- Whatever lies beside it must be of the right kind, or a write would fail half way.
    if part.kind == 4 then
      part.keys.log_len = redis.call('LLEN', part.keys.log)
    end
    if part.is_held then
      part.stale = redis.call('ZCARD', part.keys.holds) > 0
    end
    return 0
  end
  local version, kind, flags = struct.unpack('BBB', value)
  if version > VERSION then
    fail('the state was written by a newer version; it is left alone')
  end
  local alg = algorithms[kind]
  if not alg then
    fail('the state is of another algorithm')
  end
  local missing = (kind == 4 and not part.keys.log and A_LOG or 0)
    + (flags >= HAS_HOLDS and not part.keys.holds and ITS_HOLDS or 0)
  if missing > 0 then
    return missing
  end
  part.found = { kind = kind, held = flags >= HAS_HOLDS }
  if part.kind == 4 and kind ~= 4 then
    part.keys.log_len = redis.call('LLEN', part.keys.log)
  end
  local old = { kind = kind, alg = alg, at = part.at, keys = part.keys, found = part.found }
  local behind
  old.limit, old.s, behind = alg.unpack(value, 4, part.keys)
  if flags % 2 < HAS_STATE then
    old.s = nil
  end
  if part.found.held then
    local alike, late = flags % (2 * ALIKE) >= ALIKE, flags >= LATE
    old.h = holds.unpack(value, behind, part.keys.holds, alike, late)
  elseif part.is_held then
    part.stale = redis.call('ZCARD', part.keys.holds) > 0
  end
  local same = kind == part.kind and alg.same(old.limit, part.limit)
  if not same and keeps_limit then
    -- The limit that came with the hold is no longer the one that counts, nor is its calendar.
    part.kind, part.alg, part.limit = kind, alg, old.limit
    part.at = { now = now }
    old.at, same = part.at, true
  end
  -- The clock stepped back: bring it here. It is written even if the call is denied.
  if old.s and alg.ahead(old.limit, old.s, old.at) then
    old.s = alg.rebase(old.limit, old.s, old.at)
    old.dirty = true
  end
  if holds.ahead(old.h, now) then
    holds.rebase(old.h, now)
    old.dirty = true
  end
  if same then
    part.s, part.h, part.dirty = old.s, old.h, old.dirty
    return 0
  end
  -- Another limit: bring what is used and held over. It is written with a charge and not before,
  -- or whoever asks under a smaller limit would make the larger one forget.
  forecast.expire(old)
  old.dirty = old.dirty or old.h ~= nil and old.h.late
  part.h, part.old = old.h, old
  part.s = carried(part, old)
  return 0
end

-- Answers with what is missing, if anything is.
local function ask_for(missing)
  for _, what in ipairs(missing) do
    if what > 0 then
      return { 8, now, unpack(missing) }
    end
  end
end

-- Charging and writing.

local function charge(part, cost)
  if cost > 0 and part.limit.capacity > 0 then
    part.s = part.alg.charge(part.limit, part.s, part.at, cost, part.who, part.keys)
  end
end

-- A store that is full refuses a command that could make it grow, if it is the first to write. What
-- charges begins with such a command. What gives back, or charges nothing, begins with another: it
-- sets the time to live of a key that is about to be written, or dropped.
local function grows() end
local function gives_back(dirty)
  if dirty[1] then
    redis.call('PEXPIRE', dirty[1].keys.state, dirty[1].ttl)
  end
end

local function ttl_ms(span)
  if not (span >= 0 and span <= 4 * MAX) then
    fail('a time to live that is no number')
  end
  local ms = math.ceil(span / 1000) + 1000
  if is_test then
    ms = math.max(ms, DAY_MS)
  end
  return string.format('%.0f', ms)
end

-- Reads and reckons all that `save` needs.
local function prepare(part)
  local held = holds.any(part.h)
  part.ttl = ttl_ms(part.resets or forecast.reset_after(forecast.view(part)))
  if part.s or held then
    local flags = (part.s and HAS_STATE or 0)
    if held then
      flags = flags + HAS_HOLDS + (part.h.alike and ALIKE or 0) + (part.h.late and LATE or 0)
    end
    part.value = struct.pack('BBB', VERSION, part.kind, flags)
      .. part.alg.pack(part.limit, part.s or part.alg.unused)
      .. (held and holds.pack(part.h) or '')
  end
end

local has_written = false
local function save(part)
  local keys, found = part.keys, part.found
  if not part.value then
    if found then
      local all = { keys.state }
      table.insert(all, keys.log)
      table.insert(all, keys.holds)
      redis.call('UNLINK', unpack(all))
    end
    return
  end
  redis.call('SET', keys.state, part.value, 'PX', part.ttl)
  has_written = true
  if part.kind == 4 and part.s then
    log.flush(part.s)
    redis.call('PEXPIRE', keys.log, part.ttl)
  elseif found and found.kind == 4 then
    redis.call('UNLINK', keys.log)
  end
  if holds.any(part.h) then
    holds.flush(part.h)
    redis.call('PEXPIRE', keys.holds, part.ttl)
  elseif found and found.held then
    redis.call('UNLINK', keys.holds)
  end
end

-- Writes what has changed, beginning as `begin` does. Everything is reckoned before the first write:
-- nothing fails after that.
local function save_dirty(parts, begin)
  local dirty = {}
  for _, part in ipairs(parts) do
    local changed = part.dirty and part or part.old
    if changed and changed.dirty then
      prepare(changed)
      table.insert(dirty, changed)
    end
  end
  begin(dirty)
  for _, part in ipairs(dirty) do
    save(part)
  end
end

-- The parts of a call, each a limit on a subject: read, load, charge and save.

local DAY_MS = 86400000
local MAX_PARTS = 64
local EXTRA_LOG, EXTRA_HOLDS = 1, 2 -- extra keys of a state

local is_test, has_written, position, key_count

-- A function keeps its variables from one call to the next.
local function begin_call()
  is_test, has_written, position, key_count = false, false, 0, 0
  keeps_limit, only_reads = false, false
end

-- Arguments and keys, one after the other.

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

local function key()
  key_count = key_count + 1
  return KEYS[key_count] or fail('missing keys')
end

local function check_end()
  if #KEYS ~= key_count or #ARGV ~= position then
    fail('wrong number of keys or arguments; see the head of the script\'s last file')
  end
end

-- The instant of a test, or empty for the clock of Redis.
local function read_instant()
  local instant = argument('instant')
  is_test = instant ~= ''
  return instant
end

-- The boundaries of calendar windows around now.
local function read_boundaries(rule)
  local count = numeric('boundaries')
  local is_calendar = rule.kind == 3 and rule.limit.mode == 1
  if count == 1 or is_calendar and count == 0 then
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
    if is_calendar and rule.at.start then
      rule.limit.length = rule.at.stop - rule.at.start
    end
    return rule.at.start ~= nil
  end
  return true
end

-- A limit, and the instant with its calendar window.
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

local function read_mode(part)
  local mode = argument('mode')
  if mode ~= '' and mode ~= 'shadow' and mode ~= 'call' then
    fail('unknown mode')
  end
  part.is_shadow, part.is_per_call = mode == 'shadow', mode == 'call'
end

-- The keys of a part; `before` are the previous parts of the call.
local function read_keys(part, extra, before)
  local state = key()
  part.keys = { state = state, log_len = 0 }
  part.keys.log = extra % 2 == EXTRA_LOG and key() or nil
  part.keys.holds = extra >= EXTRA_HOLDS and key() or nil
  if part.kind == 4 and not part.keys.log or part.is_held and not part.keys.holds then
    fail('a log or a hold without its key')
  end
  for j = 1, #before do
    if before[j].keys.state == state then
      fail('two parts of one state; add their costs')
    end
  end
end

-- Loading: nothing is written before every key has been read.

-- Returns the extra keys that are needed and were not named; then nothing else has been read.
local function load(part)
  local value = redis.call('GET', part.keys.state)
  if not value then
    -- The extra keys must have the right type, or a write would fail half way.
    if part.kind == 4 then
      part.keys.log_len = redis.call('LLEN', part.keys.log)
    end
    if part.is_held then
      part.stale = redis.call('ZCARD', part.keys.holds) > 0
    end
    return 0
  end
  local entries, flags, holds_byte = read_entries(part, value)
  local found = { log = false, held = has(flags, HAS_HOLDS) }
  for _, entry in ipairs(entries) do
    found.log = found.log or entry.kind == 4
  end
  local missing = (found.log and not part.keys.log and EXTRA_LOG or 0)
    + (found.held and not part.keys.holds and EXTRA_HOLDS or 0)
  if missing > 0 then
    return missing
  end
  part.found = found
  if part.kind == 4 and not found.log then
    part.keys.log_len = redis.call('LLEN', part.keys.log)
  end
  if found.held then
    local alike, late = has(flags, ALIKE), has(flags, LATE)
    part.h = holds.unpack(value, holds_byte, part.keys.holds, alike, late)
  elseif part.is_held then
    part.stale = redis.call('ZCARD', part.keys.holds) > 0
  end
  apply_entries(part, entries)
  return 0
end

-- The reply of status 8, if extra keys are missing.
local function missing_reply(missing)
  for _, extra in ipairs(missing) do
    if extra > 0 then
      return { 8, now, unpack(missing) }
    end
  end
end

-- Charging and writing.

local function charged(entry, cost, caller)
  if entry.limit.size == 0 and entry.kind ~= 4 then
    return entry.s
  end
  return entry.alg.charge(entry.limit, entry.s, entry.at, cost, caller, entry.keys)
end

local function charge(part, cost)
  if cost > 0 then
    update(part, charged, cost, part.caller)
  end
end

-- A full server refuses a command that may use more memory if it is the first write of a script. A
-- charge begins with such a command. A refund, or a call that charges nothing, begins with another
-- one: it sets the TTL of a key that is about to be written or deleted.
local function grows() end
local function gives_back(dirty)
  if dirty[1] then
    redis.call('PEXPIRE', dirty[1].keys.state, dirty[1].ttl)
  end
end

local function ttl_ms(span)
  if not (span >= 0 and span <= 4 * MAX) then
    fail('invalid TTL')
  end
  local ms = math.ceil(span / 1000) + 1000
  if is_test then
    ms = math.max(ms, DAY_MS)
  end
  return string.format('%.0f', ms)
end

-- Reads and computes all that `save` needs.
local function prepare(part)
  local held = holds.any(part.h)
  local span = part.resets or forecast.reset_after(forecast.view(part))
  if part.others and part.dirty then
    drop_unused(part)
  end
  local is_used = part.s ~= nil
  part.history = part.kind == 4 and part.s or nil
  for _, other in ipairs(part.others or {}) do
    other.h = part.h
    span = math.max(span, forecast.reset_after(forecast.view(other)))
    is_used = is_used or other.s ~= nil
    part.history = part.history or other.kind == 4 and other.s or nil
  end
  part.ttl = ttl_ms(span)
  if is_used or held then
    local flags = is_used and HAS_STATE or 0
    if held then
      flags = flags + HAS_HOLDS + (part.h.alike and ALIKE or 0) + (part.h.late and LATE or 0)
    end
    local expires = now + 1000 * tonumber(part.ttl)
    part.value = pack_value(part, flags, expires, held and holds.pack(part.h) or '')
  end
end

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
  if part.history then
    log.flush(part.history)
    redis.call('PEXPIRE', keys.log, part.ttl)
  elseif found and found.log then
    redis.call('UNLINK', keys.log)
  end
  if holds.any(part.h) then
    holds.flush(part.h)
    redis.call('PEXPIRE', keys.holds, part.ttl)
  elseif found and found.held then
    redis.call('UNLINK', keys.holds)
  end
end

local function is_changed(part)
  return part.dirty or part.rebased
end

-- Writes the changed parts; `begin` makes the first write. Everything is computed before it:
-- nothing fails after that.
local function save_dirty(parts, begin)
  local dirty = {}
  for _, part in ipairs(parts) do
    local changed = is_changed(part) and part or part.old
    if changed and is_changed(changed) then
      prepare(changed)
      table.insert(dirty, changed)
    end
  end
  begin(dirty)
  for _, part in ipairs(dirty) do
    save(part)
  end
end

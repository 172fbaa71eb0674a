-- The entries of a stored value: one for each limit in use on this key, at most MAX_ENTRIES; one is
-- the normal case. docs/operate/redis.md, "Changed limits".
--
-- The entry of the caller's limit decides. What is allowed is charged to all.
--
-- value: version, kind, flags; the oldest entry: its limit, its state, when the key expires;
--        with HAS_HOLDS the sum of the holds; with HAS_OTHERS the number of further entries, when
--        the first was seen, and for each further one kind, limit, state, when it was seen
-- `seen` is when a call of the entry's own limit last wrote.

local MAX_ENTRIES = 3
local HAS_STATE, HAS_HOLDS, ALIKE, LATE, HAS_OTHERS = 1, 2, 4, 8, 16
local HOLDS_BYTES = 32
local NO_STAMP = string.rep('\0', 8)

-- Set by the last file: the instant; operations on a hold, which need no limit of the caller; those
-- that do not charge.
local now, keeps_limit, only_reads

local function has(flags, flag)
  return flags % (2 * flag) >= flag
end

local function read_entry(part, kind, value, from)
  local alg = algorithms[kind] or fail('the state is of another algorithm')
  local limit, s, next_byte, stamp = alg.unpack(value, from, part.keys)
  return { kind = kind, alg = alg, limit = limit, s = s, seen = stamp, keys = part.keys }, next_byte
end

-- The entries of a value, oldest first; its flags; the byte of the sum of its holds.
local function read_entries(part, value)
  local version, kind, flags = struct.unpack('BBB', value)
  if version > STATE_VERSION then
    fail('the state was written by a newer version; not modified')
  end
  if version == 1 then
    value = value .. NO_STAMP
  end
  local first, next_byte = read_entry(part, kind, value, 4)
  first.seen = nil
  if version == 1 then
    next_byte = next_byte - #NO_STAMP
    first.s = kind == 4 and first.s and log.from_version_1(first.limit, first.s, now) or first.s
  end
  local entries, holds_byte = { first }, next_byte
  if has(flags, HAS_OTHERS) then
    local count
    next_byte = next_byte + (has(flags, HAS_HOLDS) and HOLDS_BYTES or 0)
    count, first.seen, next_byte = struct.unpack('<Bd', value, next_byte)
    for i = 2, count + 1 do
      kind = struct.unpack('B', value, next_byte)
      entries[i], next_byte = read_entry(part, kind, value, next_byte + 1)
    end
  end
  for i, entry in ipairs(entries) do
    entry.order = i
    if not has(flags, HAS_STATE) or entry.limit.size == 0 and entry.kind ~= 4 then
      entry.s = nil
    end
  end
  return entries, flags, holds_byte
end

-- The list without this entry; nil if none is left.
local function without(entries, entry)
  local rest = {}
  for _, each in ipairs(entries) do
    if each ~= entry then
      table.insert(rest, each)
    end
  end
  return rest[1] and rest or nil
end

-- The instant for an entry of another limit than the caller's. Its calendar is known only if the
-- caller has sent its window.
local function instant_for(entry, at)
  local s, bounds = entry.s, at.bounds or {}
  for j = 2, #bounds do
    if s and bounds[j - 1] == s.start and bounds[j] - bounds[j - 1] == s.length then
      return at
    end
  end
  return { now = now }
end

local function rebased(entry, part)
  if entry.s and entry.alg.ahead(entry.limit, entry.s, entry.at) then
    part.rebased = true
    return entry.alg.rebase(entry.limit, entry.s, entry.at)
  end
  return entry.s
end

-- If the clock has stepped back, entries and holds begin again now. This is written even if the
-- call is denied.
local function rebase(part)
  update(part, rebased, part)
  for _, entry in ipairs(part.others and { part, unpack(part.others) } or {}) do
    if entry.seen > now then
      entry.seen, part.rebased = now, true
    end
  end
  if holds.ahead(part.h, now) then
    holds.rebase(part.h, now)
    part.rebased = true
  end
end

-- The time that a limit needs to recover from full.
local function recovery(entry)
  return entry.limit.size > 0 and math.min(entry.alg.recovery(entry.limit), MAX) or 0
end

-- The span until an entry is out of use, unless a call of its own limit comes before.
local function in_use_for(entry)
  return entry.seen + 2 * recovery(entry) - now
end

-- The entry from which one of another limit is derived: that of the largest size, then the oldest.
-- A log is derived from a log: they share the list.
local function source_of(entries, kind)
  local source, is_log = nil, false
  for _, entry in ipairs(entries) do
    local joins = kind == 4 and entry.kind == 4
    if not source or joins and not is_log
        or joins == is_log and entry.limit.size > source.limit.size then
      source, is_log = entry, joins
    end
  end
  return source
end

-- The usage of an entry as a state of the part's limit. `limits` are those that count a list then.
local function carried(part, entry, limits)
  if part.kind == 4 and entry.kind == 4 then
    return log.join(part.limit, entry.limit, entry.s, part.at, limits)
  end
  local used = math.min(forecast.used(entry, entry.s, entry.at), part.limit.size)
  if used == 0 then
    return nil
  end
  if entry.kind == part.kind and part.alg.carry then
    local s, same = part.alg.carry(part.limit, entry.limit, entry.s, part.at, used)
    if same ~= false then
      return s
    end
  end
  return part.alg.charge(part.limit, nil, part.at, used, '', part.keys)
end

-- The limits that count the list of a log, after one has joined them.
local function with_log(limits, part)
  return part.kind == 4 and { part.limit, unpack(limits or {}) } or limits
end

-- This entry decides, although its limit is not the caller's.
local function decide_by(part, entry, capacity)
  entry.limit.capacity = capacity
  part.kind, part.alg, part.limit = entry.kind, entry.alg, entry.limit
  part.s, part.at, part.seen, part.order = entry.s, entry.at, entry.seen, entry.order
end

-- A limit that comes with the call. The cost has to fit beside what is used under the entry, as
-- that recovers. `own` is the entry as it will be if the call is charged: nothing is cut off.
local function apply_per_call(part, entries)
  local entry, capacity = source_of(entries, part.kind), part.limit.capacity
  local used = forecast.used(entry, entry.s, entry.at) + (part.h and part.h.held or 0)
  if part.cost > 0 and used + part.cost <= capacity then
    local limits = with_log(without(part.keys.limits or {}, entry.limit), part)
    part.own = { kind = part.kind, alg = part.alg, limit = part.limit, at = part.at, seen = now,
      order = entry.order, limits = limits, s = carried(part, entry, limits) }
  end
  part.others = without(entries, entry)
  decide_by(part, entry, capacity)
end

-- Before a charge: the entry becomes that of the limit that comes with the call.
local function adopt_own(part)
  local own = part.own
  if own then
    decide_by(part, own, own.limit.capacity)
    part.own, part.keys.limits = nil, own.limits
  end
end

-- A limit without an entry. It gets one, which is written even if the call is denied, so that it
-- recovers at its own rate from now on. If too many others are in use, one of them decides.
local function apply_new(part, entries)
  local in_use, next_free = {}, MAX
  for _, entry in ipairs(entries) do
    entry.seen = entry.seen or now
    if in_use_for(entry) > 0 then
      table.insert(in_use, entry)
      next_free = math.min(next_free, in_use_for(entry))
    end
  end
  local capacity = part.limit.capacity
  if #in_use >= MAX_ENTRIES then
    local entry = source_of(in_use, part.kind)
    part.own_capacity, part.next_free = capacity, next_free
    part.others = without(in_use, entry)
    decide_by(part, entry, math.min(capacity, entry.limit.size))
    return
  end
  part.keys.limits = with_log(part.keys.limits, part)
  part.s = carried(part, source_of(entries, part.kind), part.keys.limits)
  part.others, part.order, part.seen = in_use[1] and in_use, #entries + 1, now
  if not only_reads then
    part.touches, part.dirty = true, true
    -- What has recovered under this limit is not stored: a clock step back would count it again.
    update(part, used_state)
  end
end

-- Operations on a hold, which may be older than the limit: the limit that was seen last decides.
local function apply_latest(part, entries)
  local latest = entries[1]
  for _, entry in ipairs(entries) do
    entry.at = instant_for(entry, part.at)
    entry.seen = math.min(entry.seen or now, now)
    latest = entry.seen >= latest.seen and entry or latest
  end
  if latest.kind == part.kind and part.alg.same(latest.limit, part.limit) then
    latest.at = part.at
  end
  part.others = without(entries, latest)
  decide_by(part, latest, latest.limit.size)
  rebase(part)
end

-- Without an entry of the caller's limit. `old` is what is stored, for a call that changes nothing.
local function apply_to_others(part, entries)
  local old = entries[1]
  old.others, old.h, old.found = without(entries, old), part.h, part.found
  local is_used = false
  for _, entry in ipairs(entries) do
    entry.at = instant_for(entry, part.at)
  end
  rebase(old)
  forecast.expire(old)
  old.dirty = old.h and old.h.late
  part.old = old
  part.called = { kind = part.kind, alg = part.alg, limit = part.limit, at = part.at }
  for _, entry in ipairs(entries) do
    is_used = is_used or entry.s ~= nil
  end
  if part.alg.is_held or part.is_reset or not is_used and not holds.any(part.h) then
    part.s, part.keys.limits = nil, nil
  elseif part.is_per_call then
    apply_per_call(part, entries)
  else
    apply_new(part, entries)
  end
end

local function is_unused(part)
  for _, entry in ipairs({ part, unpack(part.others or {}) }) do
    entry.h = part.h
    local view = forecast.view(entry)
    if view.held > 0 or forecast.used(entry, view.s, view.at) > 0 then
      return false
    end
  end
  return true
end

-- After a refund: without usage and holds there are no entries, and the caller's limit counts.
local function forget_unused(part)
  if part.called and is_unused(part) then
    decide_by(part, part.called, part.called.limit.size)
    part.others = nil
  end
end

-- With this entry of the caller's limit.
local function apply_own(part, own, entries)
  part.s, part.seen, part.order = own.s, own.seen, own.order
  if part.kind == 4 then
    part.limit = own.limit -- the log knows it by this table
  end
  part.others = #entries > 1 and without(entries, own) or nil
  for _, other in ipairs(part.others or {}) do
    other.at = instant_for(other, part.at)
  end
  rebase(part)
  if not part.others then
    return
  end
  part.touches = not only_reads
  if is_unused(part) then
    forecast.expire(part)
    part.others = nil
  elseif part.touches and 2 * (now - part.seen) > recovery(part) then
    forecast.expire(part)
    part.dirty = true
  end
end

local function apply_entries(part, entries)
  if keeps_limit then
    return apply_latest(part, entries)
  end
  for _, entry in ipairs(entries) do
    if entry.kind == part.kind and part.alg.same(entry.limit, part.limit) then
      return apply_own(part, entry, entries)
    end
  end
  return apply_to_others(part, entries)
end

-- Before a write that does more than rebase: others that are out of use are dropped.
local function drop_unused(part)
  local kept = {}
  for _, other in ipairs(part.others) do
    if in_use_for(other) > 0 then
      table.insert(kept, other)
    end
  end
  part.others = kept[1] and kept
  part.seen = part.touches and now or part.seen
end

local function pack_entry(entry, stamp)
  return entry.alg.pack(entry.limit, entry.s or entry.alg.unused, stamp)
end

-- The value, with what is packed of its holds.
local function pack_value(part, flags, expires, packed_holds)
  local first, others = part, ''
  if part.others then
    local entries = { part, unpack(part.others) }
    table.sort(entries, function(a, b)
      return a.order < b.order
    end)
    first, flags = entries[1], flags + HAS_OTHERS
    others = struct.pack('<Bd', #entries - 1, first.seen)
    for i = 2, #entries do
      local entry = entries[i]
      others = others .. struct.pack('B', entry.kind) .. pack_entry(entry, entry.seen)
    end
  end
  return struct.pack('BBB', STATE_VERSION, first.kind, flags) .. pack_entry(first, expires)
    .. packed_holds .. others
end

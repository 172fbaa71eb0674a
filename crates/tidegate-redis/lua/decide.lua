-- Decides one call of one or several limits in one atomic step: reads and type-checks everything,
-- looks at all, then writes all or nothing.
--
-- KEYS  for each part three: the state, its log, its holds;
--       then the record of a hold, if the operation is about one; then that of an id, if there is one
-- ARGV  1 protocol (1)   2 operation   3 instant, '' for Redis's clock (tests pass one)
--       4 hold: id, 32 hexadecimal digits, or ''   5 ttl in us   6 expiry: 0 release, 1 charge
--       7 settle: the cost to charge, '' for what was held
--       8 id: fingerprint of the request, or ''   9 hold: what the client wants to find again
--       10 number of parts, then for each part:
--          algorithm, its numbers (see each file's "limit"), boundaries of calendar windows: how many,
--          then each; cost; who ('' for nobody)
-- reply {status, now, refunded, expired, id of the hold that was made or '', then for each part:
--        allowed, retry_after (-1 never), delay, remaining, reset_after, used, held}   spans in us
--       `inspect` of a log adds its entries, oldest first: permits, who; at most 1,000
--       status 1 decided; 6 decided before, under the same id; 0 no boundary holds `now`, ask again; 2 no such hold; 3 the id was used for
--       another request; 4 the hold was settled in another way; 5 there is a hold of this id

local DAY_MS = 86400000
local HOUR_US = 3600000000
local HAS_STATE, HAS_HOLDS = 1, 2

local position = 0
local function argument(name)
  position = position + 1
  local text = ARGV[position]
  if not text then
    fail('missing ' .. name)
  end
  return text
end
local function numeric(name)
  return number(argument(name), name)
end

if argument('protocol') ~= '1' then
  fail('another protocol; use the script of your version')
end
local op = argument('operation')
local instant = argument('instant')
local hold = { id = argument('hold id'), ttl = numeric('ttl'), expiry = numeric('expiry') }
local settle_cost = argument('settle cost')
local request = argument('request')
local blob = argument('record')
local is_test = instant ~= ''
local now = read_clock(instant)
local ABOUT_HOLD = { hold = true, settle = true, renew = true }

-- Parts: everything that is asked about.

local parts = {}
local in_calendar = true
for i = 1, numeric('parts') do
  local kind = numeric('algorithm')
  local alg = algorithms[kind]
  if not alg then
    fail('unknown algorithm')
  end
  local part = { kind = kind, alg = alg, limit = alg.limit(numeric), at = { now = now } }
  local count = numeric('boundaries')
  if count > 0 then
    local bounds = {}
    for j = 1, count do
      bounds[j] = numeric('boundary')
      if j > 1 and bounds[j - 1] <= now and now < bounds[j] then
        part.at.start, part.at.stop = bounds[j - 1], bounds[j]
      end
    end
    part.at.bounds = bounds
    in_calendar = in_calendar and part.at.start ~= nil
  end
  part.cost = numeric('cost')
  part.who = argument('who')
  part.keys = { state = KEYS[3 * i - 2], log = KEYS[3 * i - 1], holds = KEYS[3 * i] }
  parts[i] = part
end
if not in_calendar then
  return { 0, now }
end
local key_count = 3 * #parts
local record_key, once_key = nil, nil
if ABOUT_HOLD[op] then
  key_count = key_count + 1
  record_key = KEYS[key_count]
end
if request ~= '' then
  once_key = KEYS[key_count + 1]
end

-- Reading: nothing is written before every key has been read.

-- Drops the holds that have ended, charging those that are to be charged, and a state of which
-- nothing is used any more.
local function expire(part)
  if holds.any(part.h) then
    local item = next_hold(part.h, { i = 0, j = 0 })
    while item and ended(item, now) do
      part.h = without(part.h, item)
      if item.expiry == CHARGE then
        local at = moved_to(part.at, item.deadline)
        part.s = part.alg.charge(part.limit, part.s, at, item.cost, '', part.keys)
      end
      item = next_hold(part.h, { i = 0, j = 0 })
    end
  end
  if part.s and forecast.used(part, part.s, part.at) == 0 then
    part.s = nil
  end
end

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

local function load(part)
  local value = redis.call('GET', part.keys.state)
  if not value then
    -- Whatever lies beside it must be of the right kind, or a write would fail half way.
    if part.kind == 4 then
      redis.call('LLEN', part.keys.log)
    end
    if op == 'hold' then
      redis.call('ZCARD', part.keys.holds)
    end
    return
  end
  local version, kind, flags = struct.unpack('BBB', value)
  if version > VERSION then
    fail('the state was written by a newer version; it is left alone')
  end
  local alg = algorithms[kind]
  if not alg then
    fail('the state is of another algorithm')
  end
  part.found = { kind = kind, flags = flags }
  local old = { kind = kind, alg = alg, at = part.at, keys = part.keys }
  local behind
  old.limit, old.s, behind = alg.unpack(value, 4, part.keys)
  if flags % 2 < HAS_STATE then
    old.s = nil
  end
  if flags >= HAS_HOLDS then
    old.h = holds.unpack(value, behind, part.keys.holds)
  elseif op == 'hold' then
    redis.call('ZCARD', part.keys.holds)
  end
  -- The clock stepped back: bring it here. It is written even if the call is denied.
  if old.s and alg.ahead(old.limit, old.s, old.at) then
    old.s = alg.rebase(old.limit, old.s, old.at)
    part.dirty = true
  end
  if holds.ahead(old.h, now) then
    old.h = holds.rebase(old.h, now)
    part.dirty = true
  end
  if kind == part.kind and alg.same(old.limit, part.limit) then
    part.s, part.h = old.s, old.h
    return
  end
  -- The limit changed: bring what is used and held over.
  expire(old)
  part.h = old.h
  part.s = carried(part, old)
  part.dirty = true
end

for _, part in ipairs(parts) do
  load(part)
end

-- Writing.

local function ttl_ms(span)
  local ms = math.ceil(span / 1000) + 1000
  if is_test then
    ms = math.max(ms, DAY_MS)
  end
  return string.format('%.0f', ms)
end

local function save(part)
  local keys, found = part.keys, part.found
  local held = holds.any(part.h)
  -- Views read what is stored, so everything is asked before anything is written.
  local ttl = ttl_ms(forecast.reset_after(forecast.view(part)))
  if part.h then
    holds.flush(part.h)
  end
  local had_log = found and found.kind == 4
  if part.kind == 4 and part.s then
    log.flush(part.s)
  elseif had_log then
    redis.call('DEL', keys.log)
  end
  if not part.s and not held then
    if found then
      redis.call('DEL', keys.state, keys.holds)
    end
    return
  end
  local flags = (part.s and HAS_STATE or 0) + (held and HAS_HOLDS or 0)
  local value = struct.pack('BBB', VERSION, part.kind, flags)
    .. part.alg.pack(part.limit, part.s or part.alg.unused)
  if held then
    value = value .. holds.pack(part.h)
    redis.call('PEXPIRE', keys.holds, ttl)
  end
  redis.call('SET', keys.state, value, 'PX', ttl)
  if part.kind == 4 and part.s then
    redis.call('PEXPIRE', keys.log, ttl)
  end
end

local function save_dirty()
  for _, part in ipairs(parts) do
    if part.dirty then
      save(part)
    end
  end
end

local reply = { 1, now, 0, 0, '' }
local function answer(verdicts)
  for _, v in ipairs(verdicts) do
    for j = 1, 7 do
      local n = v[j]
      if n == true then
        n = 1
      elseif n == false then
        n = 0
      end
      table.insert(reply, n)
    end
  end
end

local function peek_all()
  local verdicts = {}
  for i, part in ipairs(parts) do
    verdicts[i] = forecast.look(part, 0)
    verdicts[i][3] = part.turn or 0
  end
  return verdicts
end

-- An id that was charged gives the same answer again.
if once_key then
  local record = redis.call('GET', once_key)
  if record then
    local version, expires, behind = struct.unpack('<Bd', record)
    if version > VERSION then
      fail('the id was written by a newer version; it is left alone')
    end
    -- A clock that stepped back makes no record last longer than it would have.
    if now < expires and expires <= now + HOUR_US then
      if string.sub(record, behind, behind + 31) ~= request then
        return { 3, now }
      end
      local kept = cmsgpack.unpack(string.sub(record, behind + 32))
      -- The answer of a hold counts as long as the hold lasts: after that it would promise what
      -- is not there.
      local lasts = true
      for i, member in ipairs(kept.members) do
        local deadline = parts[i] and redis.call('ZSCORE', parts[i].keys.holds, member)
        lasts = lasts and deadline and tonumber(deadline) > now
      end
      if lasts then
        kept.reply[1] = 6
        return kept.reply
      end
    end
  end
end
local function keep_answer(members)
  if once_key then
    local kept = cmsgpack.pack({ reply = reply, members = members or {} })
    local record = struct.pack('<Bd', VERSION, math.min(now + HOUR_US, MAX)) .. request .. kept
    redis.call('SET', once_key, record, 'PX', ttl_ms(HOUR_US))
  end
end

local function charge(part, cost)
  if cost > 0 and part.limit.capacity > 0 then
    part.s = part.alg.charge(part.limit, part.s, part.at, cost, part.who, part.keys)
  end
end

if op == 'inspect' then
  answer(peek_all())
  for _, part in ipairs(parts) do
    if part.kind == 4 and part.s then
      log.each(part.limit, part.s, part.at, 1000, function(permits, who)
        table.insert(reply, permits)
        table.insert(reply, who)
      end)
    end
  end
  return reply
end

if op == 'check' or op == 'peek' or op == 'hold' then
  local verdicts, all, nothing = {}, true, true
  for i, part in ipairs(parts) do
    verdicts[i] = forecast.look(part, part.cost)
    all = all and verdicts[i][1]
    nothing = nothing and part.cost == 0
  end
  if op == 'hold' and redis.call('EXISTS', record_key) == 1 then
    return { 5, now }
  end
  if op == 'peek' or not all or nothing then
    save_dirty()
    answer(verdicts)
    return reply
  end
  local members = {}
  for i, part in ipairs(parts) do
    if op == 'hold' or part.cost > 0 then
      expire(part)
      if op == 'hold' then
        part.h, members[i] = holds.add(part.h or holds.new(part.keys.holds), hold.id, part.cost,
          hold.ttl, hold.expiry, now)
      else
        charge(part, part.cost)
      end
      part.dirty = true
      local after = forecast.look(part, 0)
      for j = 4, 7 do
        verdicts[i][j] = after[j]
      end
    end
  end
  save_dirty()
  if op == 'hold' then
    reply[5] = hold.id
    local fields = { 'v', VERSION, 'b', blob, 'e', hold.expiry, 'f',
      string.format('%.0f', now + hold.ttl + HOUR_US) }
    for i, member in ipairs(members) do
      table.insert(fields, 'm' .. i)
      table.insert(fields, member)
    end
    redis.call('HSET', record_key, unpack(fields))
    redis.call('PEXPIRE', record_key, ttl_ms(hold.ttl + HOUR_US))
  end
  answer(verdicts)
  keep_answer(members)
  return reply
end

if op == 'record' or op == 'refund' or op == 'reset' then
  for _, part in ipairs(parts) do
    expire(part)
    if op == 'record' then
      charge(part, part.cost)
    elseif op == 'reset' then
      part.s = nil
      part.h = part.h and holds.release(part.h)
    elseif part.s then
      local back
      part.s, back = part.alg.refund(part.limit, part.s, part.at, part.cost)
      reply[3] = math.max(reply[3], back)
    end
    part.dirty = part.dirty or part.s ~= nil or part.found ~= nil
  end
  answer(peek_all())
  save_dirty()
  keep_answer()
  return reply
end

if op ~= 'settle' and op ~= 'renew' then
  fail('unknown operation')
end

-- A hold: its record says what its end is to be, and how it ended.
local record = redis.call('HMGET', record_key, 'v', 'e', 'f', 's', 'r')
if not record[1] then
  return { 2, now }
end
if tonumber(record[1]) > VERSION then
  fail('the hold was written by a newer version; it is left alone')
end
if tonumber(record[3]) <= now then
  return { 2, now }
end
if record[4] then
  if op == 'settle' and record[4] == settle_cost .. '.' then
    return cmsgpack.unpack(record[5])
  end
  return { 4, now }
end
local named = settle_cost ~= '' and number(settle_cost, 'settle cost') or nil
for i, part in ipairs(parts) do
  expire(part)
  local member = redis.call('HGET', record_key, 'm' .. i)
  local left, item = nil, nil
  if part.h and member then
    left, item = holds.remove(part.h, member)
  end
  if left then
    part.h = left
  else
    reply[4] = 1
  end
  if op == 'settle' then
    local due = named or part.cost
    if not item and tonumber(record[2]) == CHARGE then
      due = math.max(0, due - part.cost)
    end
    if due > 0 and part.s and part.alg.delay then
      part.turn = part.alg.delay(part.limit, part.s, part.at)
    end
    charge(part, due)
  elseif item then
    part.h, part.member = holds.add(part.h, hold.id, item.cost, hold.ttl, item.expiry, now)
  end
  part.dirty = part.dirty or part.s ~= nil or part.found ~= nil
end
answer(peek_all())
save_dirty()
local keeps = HOUR_US
if op == 'settle' then
  redis.call('HSET', record_key, 's', settle_cost .. '.', 'r', cmsgpack.pack(reply), 'f',
    string.format('%.0f', now + HOUR_US))
else
  keeps = math.max(hold.ttl + HOUR_US, tonumber(record[3]) - now)
  redis.call('HSET', record_key, 'f', string.format('%.0f', now + keeps))
  for i, part in ipairs(parts) do
    if part.member then
      redis.call('HSET', record_key, 'm' .. i, part.member)
    end
  end
end
redis.call('PEXPIRE', record_key, ttl_ms(keeps))
return reply

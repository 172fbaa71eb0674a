-- Decides one call over one or several limits in one atomic step: reads and type-checks everything,
-- evaluates all limits, then writes all or nothing.
--
-- KEYS  for each part the state, then its log and its holds, if the part names them; then the
--       record of a hold, if the operation uses one; then the record of an id, if there is one;
--       then, after status 7, the record of the hold that was made with this id
-- ARGV  1 protocol (1)   2 operation   3 instant, '' for Redis's clock (tests pass one)
--       4 hold: id, 32 hexadecimal digits, or ''   5 ttl in us
--       6 id: fingerprint of the request, or ''
--       7 hold, visit: record of the client; drop: only if the record is this, or ''; extend:
--         the least total to hold, or '' for all or nothing
--       8 number of parts, then for each part:
--          extra keys: 0 none, 1 the log, 2 the holds, 3 both; algorithm, its numbers (see each
--          file's "limit"), boundaries of calendar windows: how many, then each; cost;
--          hold: '' for a part that is not held, else for hold and visit its expiry (0 release, 1
--          charge), or with a quantity 'expiry num den min want': the cost is that of `min`, and
--          num/den of a permit more, rounded up, for each unit above it; for settle the cost to
--          charge and for extend the total to hold, or 'held' for what is held, for renew and drop
--          'held';
--          caller ('' for none); mode: '' enforced, 'shadow' evaluated and not enforced, 'call'
--          enforced, and the limit comes with the call
-- reply {status, now, refunded, expired, id of the new hold or '', then for each part:
--        allowed, retry_after (-1 never), delay, remaining, reset_after, used, held}   spans in us
--       after `settle`, `renew`, `extend`, `drop` and with status 6 the capacity of each part
--       follows; after `settle` then for each part: reserved, charged, uncharged; after `extend`
--       what each part has reserved now
--       `extend` holds at least these totals, all or nothing, or with ARGV 7 one quantity in all
--       parts that name a total; with a ttl of 0 the deadline stays; `try` replies as `extend` does
--       and extends nothing
--       after `hold` and `visit` of a quantity what was granted follows, 0 if it was denied: the
--       largest from `min` to `want` that all enforced parts allow
--       `visit` is a hold whose record is deleted when it is settled; with an id that was charged
--       it holds nothing, and `settle` reports that; `drop` releases a hold and deletes its record,
--       unless it was charged when it expired
--       parts of a hold that are not held are charged when it is made, and only reported later
--       `inspect` adds how the limit recovers: the number of points, then for each a span (-1
--       never) and the permits that fit then; a log then its entries, oldest first: permits,
--       caller; at most 1,000
--       status 1 decided; 6 decided before with the same id: the enforced parts of that decision
--       0 no boundaries contain `now`, retry with others; 7 retry with the record of the hold whose
--       id is the third element
--       2 no such hold; 3 the id was used for another request; 4 the hold was settled in another
--       way; 5 a hold of this id exists; for `hold` and `visit`, the third element is 1 if any part
--       of it is active, else 0
--       9 the hold has expired and cannot be extended
--       8 nothing was written, retry with the missing keys: from the third element on, the extra
--       keys of each part, as above

local HOUR_US = 3600000000

begin_call()
if argument('protocol') ~= '1' then
  fail('unsupported protocol version; use the script of your version')
end
local MAX_COST = 4294967296 -- of one charge
local OPERATIONS = { check = 0, peek = 0, inspect = 0, record = 0, refund = 0, reset = 0, hold = 1,
  visit = 1, settle = 1, renew = 1, extend = 1, try = 1, drop = 1 }
local op = argument('operation')
local uses_hold = OPERATIONS[op] == 1
local makes_hold = op == 'hold' or op == 'visit'
local extends = op == 'extend' or op == 'try'
keeps_limit = uses_hold and not makes_hold
only_reads = op == 'peek' or op == 'inspect'
local instant = read_instant()
local hold = { id = argument('hold id') }
hold.ttl = numeric('ttl', (makes_hold or op == 'renew') and 1 or 0)
local request = argument('request')
local blob = argument('record')
local least = extends and blob ~= '' and number(blob, 'record', 1) or nil
if not OPERATIONS[op] then
  fail('unknown operation')
elseif uses_hold and (#hold.id ~= 32 or find(hold.id, '%X')) then
  fail('bad hold id')
elseif request ~= '' and #request ~= 32 then
  fail('bad fingerprint')
end
now = read_clock(instant)

-- The quantity that a hold grants, if it names one.
local quantity = nil

local function units_cost(part, units)
  return ceil_div(units * part.num, part.den)
end

-- Reads `expiry` or `expiry num den min want`. No product exceeds 2^52.
local function read_made(part, text)
  local expiry, num, den, min, want = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  part.expiry = number(expiry or text, 'hold', 0, part.alg.is_held and 0 or CHARGE)
  if expiry then
    quantity = { min = number(min, 'hold', 1, MAX_COST) }
    quantity.want = number(want, 'hold', quantity.min, MAX_COST)
    part.den = number(den, 'hold', 1, 1048576)
    part.num = number(num, 'hold', 0, MAX_COST * part.den / quantity.want)
    part.base = part.cost - units_cost(part, quantity.min)
    if part.base < 0 then
      fail('bad number for cost')
    end
  end
end

local parts, held_parts = {}, {}
local in_calendar = true
for i = 1, numeric('parts', 1, MAX_PARTS) do
  local extra = numeric('keys', 0, 3)
  local part = read_limit()
  in_calendar = part.in_calendar and in_calendar
  part.cost = numeric('cost')
  local held = argument('hold')
  if held ~= '' then
    part.is_held = makes_hold
    if makes_hold then
      read_made(part, held)
    end
    local has_cost = (op == 'settle' or extends) and held ~= 'held'
    part.actual = has_cost and number(held, 'hold') or nil
    table.insert(held_parts, part)
  end
  part.caller = argument('caller')
  read_mode(part)
  part.is_reset = op == 'reset'
  read_keys(part, extra, parts)
  if part.is_held and part.cost == 0 then
    fail('bad number for cost')
  end
  parts[i] = part
end
local record_key = uses_hold and key() or nil
local once_key = request ~= '' and key() or nil
local has_earlier = once_key and (op == 'hold' or op == 'peek') and #KEYS > key_count
local earlier_key = has_earlier and key() or nil
check_end()
if not in_calendar then
  return { 0, now }
end

local missing = {}
for i, part in ipairs(parts) do
  missing[i] = load(part)
end
if missing_reply(missing) then
  return missing_reply(missing)
end

local reply = { 1, now, 0, 0, '' }
local function add_verdicts(verdicts)
  local n = #reply
  for i = 1, #verdicts do
    local v = verdicts[i]
    reply[n + 1] = v[1] and 1 or 0
    for j = 2, 7 do
      reply[n + j] = v[j]
    end
    n = n + 7
  end
end

local function add_capacities()
  for _, part in ipairs(parts) do
    table.insert(reply, part.limit.capacity)
  end
  for _, part in ipairs(op == 'settle' and parts or {}) do
    table.insert(reply, part.reserved or part.cost)
    table.insert(reply, part.charged or part.cost)
    table.insert(reply, part.uncharged or 0)
  end
  for _, part in ipairs(extends and parts or {}) do
    table.insert(reply, part.reserved or part.cost)
  end
end

local function peek_all()
  local verdicts = {}
  for i, part in ipairs(parts) do
    verdicts[i] = forecast.look(part, 0)
    verdicts[i][3] = part.delay or 0
  end
  return verdicts
end

-- How many of these members of enforced limits are active, and their number.
local function count_active(members)
  local active, all = 0, 0
  for i, member in ipairs(members) do
    local part = held_parts[i]
    if part and not part.is_shadow then
      local deadline = member and redis.call('ZSCORE', part.keys.holds, member)
      active = active + (deadline and tonumber(deadline) > now and 1 or 0)
      all = all + 1
    end
  end
  return active, all
end

local function all_active(members)
  local active, all = count_active(members)
  return active == all
end

-- The current members of a hold, from its record.
local function members_of(key)
  local present = {}
  local ended = redis.call('HEXISTS', key, 's') == 1
  for i in ipairs(held_parts) do
    present[i] = not ended and redis.call('HGET', key, 'm' .. i)
  end
  return present
end

-- An id that was charged returns the same reply again.
if once_key then
  local record = redis.call('GET', once_key)
  local version, expires, next_byte
  if record then
    version, expires, next_byte = struct.unpack('<Bd', record)
    if version > RECORD_VERSION then
      fail('the id was written by a newer version; not modified')
    end
  end
  if record and now < expires then
    if string.sub(record, next_byte, next_byte + 31) ~= request then
      return { 3, now }
    end
    local stored = cmsgpack.unpack(string.sub(record, next_byte + 32))
    local nth = {}
    for i, part in ipairs(held_parts) do
      nth[part] = i
    end
    for i, part in ipairs(parts) do
      local member = nth[part] and stored.members[nth[part]]
      missing[i] = member and not part.keys.holds and EXTRA_HOLDS or 0
    end
    if missing_reply(missing) then
      return missing_reply(missing)
    end
    -- The reply of a hold is valid while the hold is active: after that it would promise permits
    -- that are gone. A renewed hold has other members, which are in its record.
    local active = all_active(stored.members)
    if not active and not earlier_key then
      return { 7, now, stored.reply[5] }
    end
    if active or all_active(members_of(earlier_key)) then
      -- After a clock step back, the record must not last longer than before.
      if expires > now + HOUR_US then
        -- First, so that a full server does not refuse the next write.
        redis.call('PEXPIRE', once_key, ttl_ms(HOUR_US))
        redis.call('SET', once_key, struct.pack('<Bd', RECORD_VERSION, now + HOUR_US)
          .. string.sub(record, next_byte), 'PX', ttl_ms(HOUR_US))
      end
      stored.reply[1] = 6
      return stored.reply
    end
  end
end

-- Stores the reply of the enforced parts and their capacities.
local function store_reply(members)
  if once_key then
    local stored, capacities = { unpack(reply, 1, 5) }, {}
    for i, part in ipairs(parts) do
      if not part.is_shadow then
        for j = 7 * i - 1, 7 * i + 5 do
          table.insert(stored, reply[j])
        end
        table.insert(capacities, part.limit.capacity)
      end
    end
    for _, capacity in ipairs(capacities) do
      table.insert(stored, capacity)
    end
    if quantity then
      table.insert(stored, quantity.granted)
    end
    local packed = cmsgpack.pack({ reply = stored, members = members or {} })
    local head = struct.pack('<Bd', RECORD_VERSION, math.min(now + HOUR_US, MAX))
    redis.call('SET', once_key, head .. request .. packed, 'PX', ttl_ms(HOUR_US))
  end
end

if op == 'inspect' then
  add_verdicts(peek_all())
  for _, part in ipairs(parts) do
    table.insert(reply, 0)
    local count = #reply
    forecast.recovery(forecast.view(part), function(span, fits)
      reply[count] = reply[count] + 1
      table.insert(reply, span)
      table.insert(reply, fits)
    end)
    if part.kind == 4 and part.s then
      log.each(part.limit, part.s, part.at, 1000, function(permits, caller)
        table.insert(reply, permits)
        table.insert(reply, caller)
      end)
    end
  end
  return reply
end

-- Sets the costs to those of the largest quantity that fits into what is left of every enforced
-- part, at least the minimum.
local function grant_quantity()
  if not quantity then
    return
  end
  local granted = quantity.want
  for _, part in ipairs(held_parts) do
    if part.num > 0 and not part.is_shadow then
      -- Cut, so that the product is exact.
      local room = math.min(forecast.remaining(forecast.view(part)) - part.base, MAX_COST)
      granted = math.min(granted, floor_div(math.max(0, room) * part.den, part.num))
    end
  end
  quantity.granted = math.max(granted, quantity.min)
  for _, part in ipairs(held_parts) do
    part.cost = part.base + units_cost(part, quantity.granted)
  end
end

if op == 'check' or op == 'peek' or makes_hold then
  local verdicts, allowed, is_free = {}, true, true
  grant_quantity()
  for i, part in ipairs(parts) do
    verdicts[i] = forecast.look(part, part.cost, part.cost > 0)
    allowed = allowed and (verdicts[i][1] or part.is_shadow)
    is_free = is_free and part.cost == 0
  end
  if makes_hold and redis.call('EXISTS', record_key) == 1 then
    return { 5, now, count_active(members_of(record_key)) > 0 and 1 or 0 }
  end
  if op == 'peek' or not allowed or is_free then
    for i, part in ipairs(parts) do
      verdicts[i][5] = verdicts[i][5] or forecast.reset_after(forecast.view(part))
      -- So many holds have ended that reading them in every call would cost more than a write.
      if part.ended and part.ended.more then
        forecast.expire(part)
        part.dirty = true
      end
    end
    save_dirty(parts, gives_back)
    add_verdicts(verdicts)
    if quantity then
      table.insert(reply, 0)
    end
    return reply
  end
  -- One for each held part, in the order of the parts, by which they are settled. A visit whose
  -- parts are held by no limit, all of them shadow limits that deny it, makes no hold.
  local members, made = {}, op == 'hold'
  for i, part in ipairs(parts) do
    local member = ''
    -- A shadow limit that denies the call is not charged.
    if verdicts[i][1] and part.cost > 0 then
      adopt_own(part)
      forecast.expire(part)
      if part.is_held then
        part.h = part.h or holds.new(part.keys.holds)
        part.h.stale = part.stale
        member = holds.add(part.h, hold.id, part.cost, hold.ttl, part.expiry, now)
        made = true
      else
        charge(part, part.cost)
      end
      part.dirty = true
      local after = forecast.look(part, 0)
      for j = 4, 7 do
        verdicts[i][j] = after[j]
      end
      part.resets = after[5]
    end
    if part.is_held then
      table.insert(members, member)
    end
  end
  save_dirty(parts, grows)
  if made then
    reply[5] = hold.id
    local fields = { 'v', RECORD_VERSION, 'b', blob, 'f',
      string.format('%.0f', now + hold.ttl + HOUR_US) }
    if op == 'visit' then
      -- One for every request, and its result is never read again: deleted when it is settled.
      table.insert(fields, 'd')
      table.insert(fields, 1)
    end
    for i, member in ipairs(members) do
      if member ~= '' then
        table.insert(fields, 'm' .. i)
        table.insert(fields, member)
      end
    end
    redis.call('HSET', record_key, unpack(fields))
    redis.call('PEXPIRE', record_key, ttl_ms(hold.ttl + HOUR_US))
  end
  add_verdicts(verdicts)
  if quantity then
    table.insert(reply, quantity.granted)
  end
  if op ~= 'visit' then
    store_reply(members)
  end
  return reply
end

local function refunded(entry, part)
  if not entry.s then
    return nil
  end
  local s, back = entry.alg.refund(entry.limit, entry.s, entry.at, part.cost)
  if entry == part then
    reply[3] = math.max(reply[3], back)
  end
  return s
end

if op == 'record' or op == 'refund' or op == 'reset' then
  for _, part in ipairs(parts) do
    forecast.expire(part)
    if op == 'record' then
      charge(part, part.cost)
    elseif op == 'reset' then
      part.s, part.others = nil, nil
      if part.h then
        holds.release(part.h)
      end
    else
      update(part, refunded, part)
      forget_unused(part)
    end
    part.dirty = part.dirty or part.s ~= nil or part.found ~= nil
  end
  add_verdicts(peek_all())
  save_dirty(parts, op == 'record' and grows or gives_back)
  store_reply()
  return reply
end

-- Operations on a hold: its record has its members, and the result if it was settled.
local record = redis.call('HMGET', record_key, 'v', 'f', 's', 'r', 'd', 'b')
if not record[1] then
  return { 2, now }
end
if tonumber(record[1]) > RECORD_VERSION then
  fail('the hold was written by a newer version; not modified')
end
-- A late `drop` must not end a newer hold with the same id.
if tonumber(record[2]) <= now or op == 'drop' and blob ~= '' and blob ~= record[6] then
  return { 2, now }
end
local actual_costs = {}
for i, part in ipairs(held_parts) do
  part.member = redis.call('HGET', record_key, 'm' .. i)
  part.made = part.member and holds.item(part.member, 0)
  part.reserved = part.made and part.made.cost or part.cost
  part.total = part.actual
  part.actual = op == 'drop' and 0 or part.actual or part.reserved
  actual_costs[i] = string.format('%.0f', part.actual)
end
-- Before costs had rules, one was stored for all parts, or none for what was held.
local function same_as_one(cost)
  for _, part in ipairs(held_parts) do
    if part.actual ~= (tonumber(cost) or part.reserved) then
      return false
    end
  end
  return true
end

if record[3] then
  local one = string.match(record[3], '^(%d*)%.$')
  local is_same = record[3] == table.concat(actual_costs, ' ') or one and same_as_one(one)
  if op ~= 'settle' or not is_same then
    return { 4, now }
  end
  reply = cmsgpack.unpack(record[4])
  for _, part in ipairs(one and held_parts or {}) do
    table.insert(reply, part.reserved)
    table.insert(reply, part.actual)
    table.insert(reply, 0)
  end
  return reply
end

-- The verdicts of all parts on what they have to hold in addition for `quantity`, or less if they
-- name less, and whether all allow it. A part without an increment does.
local function look_at_increments(quantity)
  local verdicts, allowed = {}, true
  for i, part in ipairs(parts) do
    part.added = part.item and part.total
      and math.max(0, math.min(part.total, quantity) - part.item.cost) or 0
    local verdict = forecast.look(part, part.added)
    if part.added == 0 then
      verdict[1], verdict[2] = true, 0
    end
    verdict[3] = 0
    allowed = allowed and (verdict[1] or part.is_shadow)
    verdicts[i], part.verdict = verdict, verdict
  end
  return verdicts, allowed
end

if extends then
  local want, is_expired = 0, false
  for _, part in ipairs(held_parts) do
    part.item = part.h and part.member and holds.find(part.h, part.member, now)
    is_expired = is_expired or not part.item and not part.is_shadow
    want = math.max(want, part.total or 0)
  end
  if is_expired then
    save_dirty(parts, gives_back)
    return { 9, now }
  end
  local verdicts, allowed = look_at_increments(want)
  if not allowed and least then
    local fits = want
    for _, part in ipairs(held_parts) do
      if part.item and part.total and not part.is_shadow then
        fits = math.min(fits, part.item.cost + part.verdict[4])
      end
    end
    verdicts, allowed = look_at_increments(math.max(fits, least))
  end
  local writes = allowed and op == 'extend'
  local fields = { 'f', record[2] }
  if hold.ttl > 0 then
    fields[2] = string.format('%.0f', math.max(now + hold.ttl + HOUR_US, tonumber(record[2])))
  end
  for i, part in ipairs(held_parts) do
    local item, verdict = part.item, part.verdict
    -- A shadow limit that denies the call stays as it is.
    local added = verdict[1] and part.added or 0
    if writes and item and (added > 0 or hold.ttl > 0) then
      part.reserved = item.cost + added
      forecast.expire(part)
      holds.remove(part.h, part.member, now)
      local ttl, from = item.ttl, item.deadline - item.ttl
      if hold.ttl > 0 then
        ttl, from = hold.ttl, now
      end
      table.insert(fields, 'm' .. i)
      table.insert(fields, holds.add(part.h, hold.id, part.reserved, ttl, item.expiry, from))
      part.dirty = true
      local after = forecast.look(part, 0)
      for j = 4, 7 do
        verdict[j] = after[j]
      end
    end
  end
  save_dirty(parts, writes and grows or gives_back)
  add_verdicts(verdicts)
  add_capacities()
  if writes then
    -- Written even if nothing changes: a replica that confirms this has what came before.
    redis.call('HSET', record_key, unpack(fields))
    redis.call('PEXPIRE', record_key, ttl_ms(tonumber(fields[2]) - now))
  end
  return reply
end

-- Charges the actual cost of a part whose hold has been removed, or had ended before.
local function settle(part, was_held)
  -- A shadow limit that denied the hold never held it, and is not charged.
  local is_due = part.member or not part.is_shadow
  local at_end = not was_held and part.made and part.made.expiry == CHARGE and part.reserved or 0
  -- What was held may be the sum of several costs.
  local due = math.max(0, math.min(part.actual, math.max(MAX_COST, part.reserved)) - at_end)
  due = is_due and due or 0
  if due > 0 and part.s and part.alg.delay then
    part.delay = part.alg.delay(part.limit, part.s, part.at)
  end
  local before = forecast.used(part, part.s, part.at)
  charge(part, due)
  part.charged, part.uncharged = 0, 0
  if not part.alg.is_held then
    local added = forecast.used(part, part.s, part.at) - before
    part.charged = at_end + math.max(0, math.min(due, added))
    part.uncharged = math.max(0, part.actual - part.charged)
  end
end

local was_charged = false
for _, part in ipairs(held_parts) do
  forecast.expire(part)
  local item = part.h and part.member and holds.remove(part.h, part.member, now)
  if not item and not part.is_shadow then
    reply[4] = 1
  end
  was_charged = was_charged or not item and part.made and part.made.expiry == CHARGE
  if op ~= 'renew' then
    settle(part, item)
  elseif item then
    part.renewed = holds.add(part.h, hold.id, item.cost, hold.ttl, item.expiry, now)
  end
  part.dirty = part.dirty or part.s ~= nil or part.found ~= nil
end
add_verdicts(peek_all())
add_capacities()
-- A hold that was charged when it expired keeps its record: a retry with its id finds it charged.
local is_deleted = op == 'drop' and not was_charged or op == 'settle' and record[5]
local record_ttl = HOUR_US
if op == 'renew' then
  record_ttl = math.max(hold.ttl + HOUR_US, tonumber(record[2]) - now)
end
save_dirty(parts, function()
  if is_deleted then
    redis.call('UNLINK', record_key)
  else
    redis.call('PEXPIRE', record_key, ttl_ms(record_ttl))
  end
end)
store_reply()
if is_deleted then
  return reply
end
local fields = { 'f', string.format('%.0f', now + record_ttl) }
local function set(field, value)
  table.insert(fields, field)
  table.insert(fields, value)
end
if op == 'settle' then
  set('s', table.concat(actual_costs, ' '))
  set('r', cmsgpack.pack(reply))
end
for i, part in ipairs(held_parts) do
  if part.renewed then
    set('m' .. i, part.renewed)
  end
end
redis.call('HSET', record_key, unpack(fields))
return reply

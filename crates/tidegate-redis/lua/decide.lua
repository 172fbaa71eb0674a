-- Decides one call of one or several limits in one atomic step: reads and type-checks everything,
-- looks at all, then writes all or nothing.
--
-- KEYS  for each part the state, then its log and its holds, as far as the part says that they come;
--       then the record of a hold, if the operation is about one; then that of an id, if there is one;
--       then, after reply 7, the record of the hold that was made under this id
-- ARGV  1 protocol (1)   2 operation   3 instant, '' for Redis's clock (tests pass one)
--       4 hold: id, 32 hexadecimal digits, or ''   5 ttl in us   6 expiry: 0 release, 1 charge
--         (hold, enter and visit alike; enter has no expiry but release, and no id at 8)
--       7 settle: the cost to charge, '' for what was held
--       8 id: fingerprint of the request, or ''
--       9 hold, enter, visit: what the client wants to find again; drop: only if it finds this, or ''
--       10 number of parts, then for each part:
--          what comes beside its state: 0 nothing, 1 the log, 2 the holds, 3 both; algorithm, its numbers (see each file's "limit"), boundaries of calendar windows: how many,
--          then each; cost; who ('' for nobody); mode: '' decides, 'shadow' only looks on
-- reply {status, now, refunded, expired, id of the hold that was made or '', then for each part:
--        allowed, retry_after (-1 never), delay, remaining, reset_after, used, held}   spans in us
--       after `settle`, `renew`, `drop` and with status 6 the capacity of each part follows
--       `visit` is a hold that is forgotten when it is settled; under an id it holds nothing if that
--       was charged, and leaves it to `settle` to say so; `drop` charges nothing and forgets
--       any hold
--       `enter` holds the parts that count holders and charges the others; its hold is of those held
--       alone, and there is none if none was
--       `inspect` of a log adds its entries, oldest first: permits, who; at most 1,000
--       status 1 decided; 6 decided before, under the same id: the parts that decided then
--       0 no boundary holds `now`, ask again; 7 ask again with the record of the hold in place 3
--       2 no such hold; 3 the id was used for another request; 4 the hold was settled in another
--       way; 5 there is a hold of this id; for `hold` and `visit`, place 3 says whether any of it
--       lasts (1) or not (0)
--       8 nothing was done, ask again with what is missing: places 3 and on say for each part what
--       must come beside its state, as above

local HOUR_US = 3600000000

if argument('protocol') ~= '1' then
  fail('another protocol; use the script of your version')
end
local OPERATIONS = { check = 0, peek = 0, inspect = 0, record = 0, refund = 0, reset = 0, hold = 1,
  enter = 1, visit = 1, settle = 1, renew = 1, drop = 1 }
local op = argument('operation')
local about_hold = OPERATIONS[op] == 1
keeps_limit = op == 'settle' or op == 'renew' or op == 'drop'
local instant = read_instant()
local hold = { id = argument('hold id') }
local of_request = op == 'enter' or op == 'visit'
local makes_hold = op == 'hold' or of_request
hold.ttl = numeric('ttl', (makes_hold or op == 'renew') and 1 or 0)
hold.expiry = numeric('expiry', 0, op == 'enter' and 0 or 1)
local settle_cost = argument('settle cost')
local named = settle_cost ~= '' and number(settle_cost, 'settle cost') or nil
if op == 'drop' then
  named = 0
end
local request = argument('request')
local blob = argument('record')
if not OPERATIONS[op] then
  fail('unknown operation')
elseif about_hold and (#hold.id ~= 32 or find(hold.id, '%X')) then
  fail('bad hold id')
elseif request ~= '' and #request ~= 32 then
  fail('bad fingerprint')
elseif request ~= '' and op == 'enter' then
  fail('enter takes no id')
end
now = read_clock(instant)

local parts = {}
local in_calendar = true
for i = 1, numeric('parts', 1, MOST_PARTS) do
  local beside = numeric('keys', 0, 3)
  local part = read_limit()
  in_calendar = part.in_calendar and in_calendar
  part.is_held = op == 'hold' or op == 'visit' or op == 'enter' and part.alg.is_held
  part.cost = numeric('cost', part.is_held and 1 or 0)
  part.who = argument('who')
  part.looks_on = read_mode()
  read_keys(part, beside, parts)
  parts[i] = part
end
local record_key = about_hold and key() or nil
local once_key = request ~= '' and key() or nil
local earlier_key = once_key and (op == 'hold' or op == 'peek') and #KEYS > key_count and key() or nil
no_more_words()
if not in_calendar then
  return { 0, now }
end

local missing = {}
for i, part in ipairs(parts) do
  missing[i] = load(part)
end
if ask_for(missing) then
  return ask_for(missing)
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

local function answer_capacities()
  for _, part in ipairs(parts) do
    table.insert(reply, part.limit.capacity)
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

-- How many of these members last, and of how many. Limits that only look on do not matter.
local function lasting(members)
  local last, all = 0, 0
  for i, member in ipairs(members) do
    if parts[i] and not parts[i].looks_on then
      local deadline = member and redis.call('ZSCORE', parts[i].keys.holds, member)
      last = last + (deadline and tonumber(deadline) > now and 1 or 0)
      all = all + 1
    end
  end
  return last, all
end

local function all_last(members)
  local last, all = lasting(members)
  return last == all
end

-- The members of a hold, as its record has them by now.
local function members_of(key)
  local present = {}
  local ended = redis.call('HEXISTS', key, 's') == 1
  for i in ipairs(parts) do
    present[i] = not ended and redis.call('HGET', key, 'm' .. i)
  end
  return present
end

-- An id that was charged gives the same answer again.
if once_key then
  local record = redis.call('GET', once_key)
  local version, expires, behind
  if record then
    version, expires, behind = struct.unpack('<Bd', record)
    if version > VERSION then
      fail('the id was written by a newer version; it is left alone')
    end
  end
  if record and now < expires then
    if string.sub(record, behind, behind + 31) ~= request then
      return { 3, now }
    end
    local kept = cmsgpack.unpack(string.sub(record, behind + 32))
    for i, part in ipairs(parts) do
      missing[i] = kept.members[i] and not part.keys.holds and ITS_HOLDS or 0
    end
    if ask_for(missing) then
      return ask_for(missing)
    end
    -- The answer of a hold counts as long as the hold lasts: after that it would promise what
    -- is not there. Renewed, it has other members, which its record knows.
    local lasts = all_last(kept.members)
    if not lasts and not earlier_key then
      return { 7, now, kept.reply[5] }
    end
    if lasts or all_last(members_of(earlier_key)) then
      -- A clock that stepped back makes no record last longer than it would have.
      if expires > now + HOUR_US then
        redis.call('PEXPIRE', once_key, ttl_ms(HOUR_US)) -- a full store must not refuse what follows
        redis.call('SET', once_key, struct.pack('<Bd', VERSION, now + HOUR_US)
          .. string.sub(record, behind), 'PX', ttl_ms(HOUR_US))
      end
      kept.reply[1] = 6
      return kept.reply
    end
  end
end

-- Keeps what those have said that decide, and how much each of them allows at most.
local function keep_answer(members)
  if once_key then
    local said, most = { unpack(reply, 1, 5) }, {}
    for i, part in ipairs(parts) do
      if not part.looks_on then
        for j = 7 * i - 1, 7 * i + 5 do
          table.insert(said, reply[j])
        end
        table.insert(most, part.limit.capacity)
      end
    end
    for _, capacity in ipairs(most) do
      table.insert(said, capacity)
    end
    local kept = cmsgpack.pack({ reply = said, members = members or {} })
    local record = struct.pack('<Bd', VERSION, math.min(now + HOUR_US, MAX)) .. request .. kept
    redis.call('SET', once_key, record, 'PX', ttl_ms(HOUR_US))
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

if op == 'check' or op == 'peek' or makes_hold then
  local verdicts, all, nothing = {}, true, true
  for i, part in ipairs(parts) do
    verdicts[i] = forecast.look(part, part.cost)
    all = all and (verdicts[i][1] or part.looks_on)
    nothing = nothing and part.cost == 0
  end
  if makes_hold and redis.call('EXISTS', record_key) == 1 then
    local lasts = op ~= 'enter' and lasting(members_of(record_key)) > 0
    return { 5, now, lasts and 1 or 0 }
  end
  if op == 'peek' or not all or nothing then
    for _, part in ipairs(parts) do
      -- So many holds have ended that looking at them again and again would cost more.
      if part.ended and part.ended.more then
        forecast.expire(part)
        part.dirty = true
      end
    end
    save_dirty(parts, gives_back)
    answer(verdicts)
    return reply
  end
  -- One for each part that is held, in their order, which is that of the parts to settle them by.
  local members, made = {}, op ~= 'enter' and makes_hold
  for i, part in ipairs(parts) do
    local member = ''
    -- A limit that looks on and would not allow it is left alone.
    if verdicts[i][1] and part.cost > 0 then
      forecast.expire(part)
      if part.is_held then
        part.h = part.h or holds.new(part.keys.holds)
        part.h.stale = part.stale
        member = holds.add(part.h, hold.id, part.cost, hold.ttl, hold.expiry, now)
        made = true
      else
        charge(part, part.cost)
      end
      part.dirty = true
      local after = forecast.look(part, 0)
      for j = 4, 7 do
        verdicts[i][j] = after[j]
      end
    end
    if part.is_held then
      table.insert(members, member)
    end
  end
  save_dirty(parts, grows)
  if made then
    reply[5] = hold.id
    local fields = { 'v', VERSION, 'b', blob, 'e', hold.expiry, 'f',
      string.format('%.0f', now + hold.ttl + HOUR_US) }
    if of_request then
      -- There is one for every request, and nobody asks how it ended: it goes when it is settled.
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
  answer(verdicts)
  if op ~= 'visit' then
    keep_answer(members)
  end
  return reply
end

if op == 'record' or op == 'refund' or op == 'reset' then
  for _, part in ipairs(parts) do
    forecast.expire(part)
    if op == 'record' then
      charge(part, part.cost)
    elseif op == 'reset' then
      part.s = nil
      if part.h then
        holds.release(part.h)
      end
    elseif part.s then
      local back
      part.s, back = part.alg.refund(part.limit, part.s, part.at, part.cost)
      reply[3] = math.max(reply[3], back)
    end
    part.dirty = part.dirty or part.s ~= nil or part.found ~= nil
  end
  answer(peek_all())
  save_dirty(parts, op == 'record' and grows or gives_back)
  keep_answer()
  return reply
end

-- A hold: its record says what its end is to be, and how it ended.
local record = redis.call('HMGET', record_key, 'v', 'e', 'f', 's', 'r', 'd', 'b')
if not record[1] then
  return { 2, now }
end
if tonumber(record[1]) > VERSION then
  fail('the hold was written by a newer version; it is left alone')
end
-- What is dropped late must not be what was held under this name since.
if tonumber(record[3]) <= now or op == 'drop' and blob ~= '' and blob ~= record[7] then
  return { 2, now }
end
if record[4] then
  if op == 'settle' and record[4] == settle_cost .. '.' then
    return cmsgpack.unpack(record[5])
  end
  return { 4, now }
end
for i, part in ipairs(parts) do
  forecast.expire(part)
  local member = redis.call('HGET', record_key, 'm' .. i)
  local item = part.h and member and holds.remove(part.h, member, now)
  if not item and not part.looks_on then
    reply[4] = 1
  end
  if op ~= 'renew' then
    -- What looked on and did not allow it was never held, and is not charged.
    local due = (member or not part.looks_on) and (named or part.cost) or 0
    if not item and tonumber(record[2]) == CHARGE then
      due = math.max(0, due - part.cost)
    end
    if due > 0 and part.s and part.alg.delay then
      part.turn = part.alg.delay(part.limit, part.s, part.at)
    end
    charge(part, due)
  elseif item then
    part.member = holds.add(part.h, hold.id, item.cost, hold.ttl, item.expiry, now)
  end
  part.dirty = part.dirty or part.s ~= nil or part.found ~= nil
end
answer(peek_all())
answer_capacities()
local forgotten = op == 'drop' or op == 'settle' and record[6]
local keeps = HOUR_US
if op == 'renew' then
  keeps = math.max(hold.ttl + HOUR_US, tonumber(record[3]) - now)
end
save_dirty(parts, function()
  if forgotten then
    redis.call('UNLINK', record_key)
  else
    redis.call('PEXPIRE', record_key, ttl_ms(keeps))
  end
end)
keep_answer()
if forgotten then
  return reply
end
local fields = { 'f', string.format('%.0f', now + keeps) }
local function set(field, value)
  table.insert(fields, field)
  table.insert(fields, value)
end
if op == 'settle' then
  set('s', settle_cost .. '.')
  set('r', cmsgpack.pack(reply))
end
for i, part in ipairs(parts) do
  if part.member then
    set('m' .. i, part.member)
  end
end
redis.call('HSET', record_key, unpack(fields))
return reply

-- A set of more than MOST entries. All are counted once in an interval, MOST at a time: whoever asks meanwhile counts
-- a part and has to ask again. Between that, what is left by its own word is right, since it and what was taken
-- change together.
--
-- KEYS[6] how far that is, a hash          KEYS[7] the same of this client alone
--   rate, interval   for which it holds
--   top       one of the newest entries when it began; without it, all of this is of a time that is over
--   last      the entry up to which the older ones are counted; empty when all are
--   step      how many are counted at a time
--   begun     how many entries there were    seen   how many are counted
--   sum       what those hold                empty  how many of those hold nothing
--   left      what was left when it began; empty if nobody knew, and then nobody knows until all are counted
--   since     whether somebody knew another rate: `same`, `changed` or `unknown`
--   owed      what the oldest entries have yet to give for what Java gave back without them

-- So many are taken out in a call, which takes as long again as to look at them.
local PART = MOST / 2

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
  local words = {}
  for _, name in ipairs(TEXTS) do
    words[#words + 1], words[#words + 2] = name, c[name]
  end
  for _, name in ipairs(NUMBERS) do
    words[#words + 1], words[#words + 2] = name, digits(c[name])
  end
  redis.call('HSET', count_key, unpack(words))
  if c.left == '' and c.last ~= '' then
    -- Forgotten, it would look as if entries had been lost.
    keep_with_it(count_key)
  else
    redis.call('PEXPIRE', count_key, digits(math.max(interval, 1000)))
  end
end

-- Counts the entries of these ranks.
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

-- Both ends are counted at once, so that it does not matter what others write meanwhile: what they take back is at
-- one end, what they add at the other.
local function begin(left, count, step, as)
  local half = math.floor(math.min(step, count) / 2)
  local c = { step = step, begun = count, seen = 0, sum = 0, empty = 0, owed = 0, since = as }
  c.rate, c.interval = digits(rate), digits(interval)
  c.top = add(c, count - half, -1)[1]
  c.last = add(c, 0, half - 1)[half]
  c.left = left and left <= rate and digits(left) or ''
  if c.left == '' then
    -- Nothing, until it is known.
    redis.call('SET', value_key, '0', 'KEEPTTL')
    keep()
  end
  write_count(c)
end

-- Counts the next. False if others took back what is not counted yet.
local function go_on(c)
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

-- All are counted, so that it is known what was too much when it began, and still is. That much less is left at once.
-- What Java gave back then comes back from the oldest entries.
local function finish(c, left, id)
  local then_left = c.left ~= '' and whole(c.left, 'what was left')
  local surplus = (then_left or 0) + c.sum - rate
  if surplus > 0 or not then_left then
    left = left - surplus
  end
  since = c.since
  if surplus > 0 and then_left and was_given_back(then_left) then
    c.owed = surplus
  end
  local lost = 0
  if then_left and c.seen == c.begun then
    lost = math.max(0, -surplus)
  end
  settle({ gone = 0, lost = lost, left = left }, id)
  write_count(c)
end

-- The oldest entries give of what is owed. Says what is left then, and how many entries were read for it.
local function pay(c, left, id)
  local members = redis.call('ZRANGE', permits_key, 0, math.min(c.owed, PART) - 1)
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

-- What is left of so many, or nothing if there is more to be done first: one step of it is. `left` is the number that
-- stands there, `known` the same if it says what is left.
local function look_at_many(left, known, count, id)
  local c = read_count()
  local changed = c and (c.rate ~= digits(rate) or c.interval ~= digits(interval))
  if not c or changed or not left or left > rate then
    return begin(known, count, MOST, changed and 'changed' or c and 'same' or since)
  end
  if c.last ~= '' then
    if not go_on(c) then
      return begin(known, count, c.step * 2, c.since)
    end
    if c.last ~= '' then
      return write_count(c)
    end
    return finish(c, left, id)
  end
  local given = left - (rate - (count - c.empty))
  if given > 0 then
    -- Each of the others has a permit or more, so that Java gave back as much. To count again would have no end where
    -- it does so all the time.
    left, c.owed = left - given, c.owed + given
  end
  local paid = 0
  if c.owed > 0 then
    left, paid = pay(c, left, id)
    if c.owed > 0 then
      return nil
    end
  end
  local expired = count_expired()
  local most = math.min(expired, PART - paid)
  local members = most > 0 and redis.call('ZRANGE', permits_key, 0, most - 1) or {}
  local s = { left = left, gone = #members, lost = 0, read = #members, many = c }
  for _, member in ipairs(members) do
    s.left = s.left + unpack_entry(member)
  end
  if expired <= #members then
    return s
  end
  settle(s, id)
end

-- What is left, and what has to be done so that it is; of MOST entries or fewer, nothing is written. Nothing if there
-- are more and it takes another call. `how` is `trust` if what is left by its own word is right as long as nothing
-- has expired, or `whole`. `id` is for an entry of what was lost.
local function look(how, id)
  local text = redis.call('GET', value_key)
  local left = text and whole(text, 'what is left')
  local begun = redis.call('HMGET', count_key, 'left', 'last')
  unknown = begun[1] == '' and begun[2] ~= ''
  local known = not unknown and left or nil
  local count = redis.call('ZCARD', permits_key)
  if count > MOST then
    return look_at_many(left, known, count, id)
  end
  if how == 'trust' and known and known <= rate and count_expired() == 0 then
    return { left = known, gone = 0, lost = 0, read = 0, trust = known }
  end
  return count_all(known)
end

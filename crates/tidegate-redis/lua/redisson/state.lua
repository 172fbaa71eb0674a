-- The limiter as it is: its rate, what is left of it, and what comes back by now.

-- So many entries are counted in a call, which takes about 0.3 us each.
local MOST = 1000

local rate, interval, keep_alive, value_key, permits_key, count_key
-- Whether they are those that this client knew: `same`, `changed`, or `unknown` when it knew none.
local since
-- Whether the number of what is left is none: many entries were to be counted for it, and were not.
local unknown = false

local function configure(of)
  if of[3] ~= '0' and of[3] ~= '1' then
    fail('the type is neither 0 nor 1')
  end
  rate = math.max(whole(of[1], 'the rate'), 0)
  interval = math.max(whole(of[2], 'the interval'), 0)
  keep_alive = of[4] and whole(of[4], 'the keep-alive time') or 0
  value_key, permits_key, count_key = KEYS[2], KEYS[4], KEYS[6]
  if of[3] == '1' then
    value_key, permits_key, count_key = KEYS[3], KEYS[5], KEYS[7]
  end
  since = ARGV[2] == digits(rate) .. ' ' .. digits(interval) and 'same' or 'changed'
  since = ARGV[2] == '' and 'unknown' or since
end

-- How many of the oldest entries count no longer.
local function count_expired()
  return redis.call('ZCOUNT', permits_key, '-inf', digits(now_ms - interval))
end

-- Whether Java gave back what is too much, rather than lowered the rate, when so many were left by its word.
local function was_given_back(left)
  return since == 'same' or since == 'unknown' and left > 0
end

-- All entries, and what is left when everything is in order; of a set of no more than MOST. `trust` is what is
-- left by its own word, or nothing if that is not known. Writes nothing.
--
-- More than the rate in all: Java gave something back and left its entry, or lowered the rate and said that nothing was
-- left. What was given back is to be believed: the oldest entries have to go without anything coming back for them.
-- After a lowered rate less than nothing is left, until the oldest entries have paid for it.
--
-- Less than the rate in all: entries were lost. Nobody knows of when they were, so they are entries of now.
local function count_all(trust)
  local members = redis.call('ZRANGE', permits_key, 0, -1)
  local permits, taken = {}, 0
  for i, member in ipairs(members) do
    permits[i] = unpack_entry(member)
    taken = taken + permits[i]
  end
  -- With no number and no entry, it is as new.
  local s = { lost = 0, read = #members, odd = trust ~= nil or #members > 0 }
  local surplus = 0
  if trust and trust <= rate then
    surplus = trust + taken - rate
    s.lost = math.max(0, -surplus)
    s.odd = surplus ~= 0
    if not was_given_back(trust) then
      surplus = 0
    end
  end
  local i = 1
  while surplus > 0 and i <= #members do
    local part = math.min(surplus, permits[i])
    permits[i], taken, surplus = permits[i] - part, taken - part, surplus - part
    if permits[i] > 0 then
      s.cut = { member = members[i], permits = permits[i] }
    else
      i = i + 1
    end
  end
  local expired = count_expired()
  while i <= expired do
    s.cut, taken, i = nil, taken - permits[i], i + 1
  end
  s.gone, s.left, s.whole = i - 1, rate - taken - s.lost, true
  return s
end

-- Makes it so, once. `id` is for an entry of what was lost.
local function settle(s, id)
  if s.gone > 0 then
    redis.call('ZREMRANGEBYRANK', permits_key, 0, s.gone - 1)
  end
  if s.cut then
    local score = redis.call('ZSCORE', permits_key, s.cut.member)
    local _, old = unpack_entry(s.cut.member)
    redis.call('ZREM', permits_key, s.cut.member)
    redis.call('ZADD', permits_key, score, pack(old, s.cut.permits))
  end
  if s.lost > 0 then
    redis.call('ZADD', permits_key, digits(stamp_ms), pack('lost' .. id, math.min(s.lost, 4294967295)))
  end
  redis.call('SET', value_key, digits(s.left), 'KEEPTTL')
  if unknown then
    redis.call('DEL', count_key)
    unknown = false
  end
  s.gone, s.cut, s.lost, s.odd, s.read = 0, nil, 0, false, 0
end

-- These live as long as the configuration.
local function keep_with_it(...)
  local ttl = redis.call('PTTL', KEYS[1])
  for _, key in ipairs({ ... }) do
    if ttl == -1 then
      redis.call('PERSIST', key)
    else
      -- In its last millisecond it is 0.
      redis.call('PEXPIRE', key, digits(math.max(ttl, 1)))
    end
  end
end

-- So does everything, and the configuration for the keep-alive time if it has one.
local function keep()
  if keep_alive > 0 then
    redis.call('PEXPIRE', KEYS[1], digits(keep_alive))
  end
  keep_with_it(value_key, permits_key)
end

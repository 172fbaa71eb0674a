-- The limiter as it is: its rate, what is left of it, and what comes back by now.

-- With more entries than this they are not all looked at, which takes about 0.3 us each.
local MOST = 1000

local rate, interval, keep_alive, value_key, permits_key

local function configure(of)
  rate = math.max(whole(of[1], 'the rate'), 0)
  interval = math.max(whole(of[2], 'the interval'), 0)
  keep_alive = of[4] and whole(of[4], 'the keep-alive time') or 0
  value_key, permits_key = KEYS[2], KEYS[4]
  if of[3] == '1' then
    value_key, permits_key = KEYS[3], KEYS[5]
  end
end

-- How many of the oldest entries count no longer.
local function count_expired()
  return redis.call('ZCOUNT', permits_key, '-inf', digits(now_ms - interval))
end

-- All entries, and what is left when everything is in order. `trust` is what is left by its own word, or
-- nothing if that is not known.
--
-- More than the rate in all: Java gave something back and left its entry, or lowered the rate. Of both, the
-- oldest entries have to go without anything coming back for them. Less than the rate in all: entries were
-- lost. Nobody knows of when they were, so they are entries of now.
local function count_all(trust)
  local members = redis.call('ZRANGE', permits_key, 0, -1)
  local permits, taken = {}, 0
  for i, member in ipairs(members) do
    permits[i] = unpack_entry(member)
    taken = taken + permits[i]
  end
  local surplus, lost = taken - rate, 0
  if trust and trust <= rate then
    surplus = trust + taken - rate
    lost = math.max(0, -surplus)
  end
  local s = { gone = 0, lost = lost }
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
  s.gone, s.left, s.whole = i - 1, rate - taken - lost, true
  return s
end

-- What is left, and what has to be done so that it is. Writes nothing.
local function look()
  local text = redis.call('GET', value_key)
  local left = text and whole(text, 'what is left')
  local count, expired = redis.call('ZCARD', permits_key), count_expired()
  if left and left <= rate and expired == 0 then
    return { left = left, gone = 0, lost = 0, trust = left }
  end
  if not left or left > rate or count <= MOST then
    return count_all(left)
  end
  local trust = left
  local members = redis.call('ZRANGE', permits_key, 0, math.min(expired, MOST) - 1)
  for _, member in ipairs(members) do
    left = left + unpack_entry(member)
  end
  -- Each that stays has a permit or more.
  left = math.min(left, rate - (count - #members))
  return { left = left, gone = #members, lost = 0, trust = trust, more = expired > #members }
end

-- Makes it so. `id` is for an entry of what was lost.
local function settle(s, id)
  if s.cut then
    local score = redis.call('ZSCORE', permits_key, s.cut.member)
    local _, old = unpack_entry(s.cut.member)
    redis.call('ZREM', permits_key, s.cut.member)
    redis.call('ZADD', permits_key, score, pack(old, s.cut.permits))
  end
  if s.gone > 0 then
    redis.call('ZREMRANGEBYRANK', permits_key, 0, s.gone - 1)
  end
  if s.lost > 0 then
    redis.call('ZADD', permits_key, digits(stamp_ms), pack('lost' .. id, math.min(s.lost, 4294967295)))
  end
  redis.call('SET', value_key, digits(s.left))
end

-- Everything lives as long as the configuration, which lives for the keep-alive time if it has one.
local function keep()
  if keep_alive > 0 then
    for _, key in ipairs({ KEYS[1], value_key, permits_key }) do
      redis.call('PEXPIRE', key, digits(keep_alive))
    end
    return
  end
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl > 0 then
    redis.call('PEXPIRE', value_key, ttl)
    redis.call('PEXPIRE', permits_key, ttl)
  end
end

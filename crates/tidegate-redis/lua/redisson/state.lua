-- The state of the limiter: its rate, its remaining permits, and its expired entries.

-- Entries that are counted in one call; each takes about 0.3 us.
local MAX = 1000

local rate, interval, keep_alive, value_key, permits_key, count_key
-- Whether this client knew this rate and interval: `same`, `changed`, or `unknown` if it knew none.
local since
-- Whether the stored number of remaining permits is invalid: counting the entries is not complete.
local unknown = false

local function configure(config)
  if config[3] ~= '0' and config[3] ~= '1' then
    fail('the type is neither 0 nor 1')
  end
  rate = math.max(whole(config[1], 'the rate'), 0)
  interval = math.max(whole(config[2], 'the interval'), 0)
  keep_alive = config[4] and whole(config[4], 'the keep-alive time') or 0
  value_key, permits_key, count_key = KEYS[2], KEYS[4], KEYS[6]
  if config[3] == '1' then
    value_key, permits_key, count_key = KEYS[3], KEYS[5], KEYS[7]
  end
  since = ARGV[2] == digits(rate) .. ' ' .. digits(interval) and 'same' or 'changed'
  since = ARGV[2] == '' and 'unknown' or since
end

-- The number of expired entries, which are the oldest.
local function count_expired()
  return redis.call('ZCOUNT', permits_key, '-inf', digits(now_ms - interval))
end

-- Whether the surplus comes from a release by Java, and not from a lowered rate. `left` is the
-- stored number of remaining permits.
local function was_released(left)
  return since == 'same' or since == 'unknown' and left > 0
end

-- Reads all entries and computes the corrected state, of a set of at most MAX. `trust` is the
-- stored number of remaining permits, or nil if it is invalid. Writes nothing.
--
-- A total above the rate: Java released permits and left the entry, or lowered the rate and set the
-- remaining permits to 0. Released permits count: the oldest entries are removed without returning
-- permits. After a lowered rate the remaining permits are negative, until the oldest entries
-- expire.
--
-- A total below the rate: entries were lost. Their age is not known, so they count as entries of
-- now.
local function count_all(trust)
  local members = redis.call('ZRANGE', permits_key, 0, -1)
  local permits, taken = {}, 0
  for i, member in ipairs(members) do
    permits[i] = unpack_entry(member)
    taken = taken + permits[i]
  end
  -- Without a number and without entries, the limiter is new.
  local s = { lost = 0, read = #members, odd = trust ~= nil or #members > 0 }
  local surplus = 0
  if trust and trust <= rate then
    surplus = trust + taken - rate
    s.lost = math.max(0, -surplus)
    s.odd = surplus ~= 0
    if not was_released(trust) then
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

-- Writes the corrected state, once. `id` is for the entry of lost permits.
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

-- Gives these keys the TTL of the configuration.
local function copy_ttl(...)
  local ttl = redis.call('PTTL', KEYS[1])
  for _, key in ipairs({ ... }) do
    if ttl == -1 then
      redis.call('PERSIST', key)
    else
      -- In the last millisecond the TTL is 0.
      redis.call('PEXPIRE', key, digits(math.max(ttl, 1)))
    end
  end
end

-- Extends the configuration by its keep-alive time if it has one, and copies its TTL to the other
-- keys.
local function keep()
  if keep_alive > 0 then
    redis.call('PEXPIRE', KEYS[1], digits(keep_alive))
  end
  copy_ttl(value_key, permits_key)
end

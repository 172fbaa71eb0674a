-- Takes permits if there are as many, or only looks.
--
-- ARGV[2] how many   ARGV[3] `take` or `look`   ARGV[4] the id of the entry
-- answers 1, what is left after it | 0, what is left, the us until there may be enough, the us that one permit takes
-- on average | 3, the rate, which is less than is asked for

local wanted = whole(ARGV[2], 'the number of permits')
local id = ARGV[4]
if wanted > rate then
  return { 3, rate }
end

-- When the oldest entries that stay will have given back as much, in us from now; nothing if there are too few.
local function wait_for(need, s)
  local from, last = s.gone, nil
  local walked = redis.call('ZRANGE', permits_key, from, from + math.min(need, MOST) - 1, 'WITHSCORES')
  for i = 1, #walked, 2 do
    local permits = unpack_entry(walked[i])
    if s.cut and i == 1 then
      permits = s.cut.permits
    end
    need, last = need - permits, tonumber(walked[i + 1])
    if need <= 0 then
      break
    end
  end
  if not last or (need > 0 and #walked < 2 * MOST) then
    return nil
  end
  -- None counts for longer than the interval, rounded up, whatever clock it was written by.
  local wait = (last + interval) * 1000 - now_us
  return math.max(1, math.min(wait, interval * 1000 + 1000))
end

local s = look()
if s.left >= wanted then
  if ARGV[3] == 'take' and wanted > 0 then
    s.left = s.left - wanted
    settle(s, id)
    redis.call('ZADD', permits_key, digits(stamp_ms), pack(id, wanted))
    keep()
  end
  return { 1, math.max(s.left, 0) }
end

local wait = s.more and 1 or wait_for(wanted - s.left, s)
if not wait then
  -- There are fewer entries than there should be.
  s = s.whole and s or count_all(s.trust)
  wait = wait_for(wanted - s.left, s) or interval * 1000
  if ARGV[3] == 'take' and s.lost > 0 then
    settle(s, id)
  end
end
if ARGV[3] == 'take' then
  keep()
end
return { 0, math.max(s.left, 0), wait, interval * 1000 / rate }

-- Takes permits if there are as many, or only looks.
--
-- ARGV[3] how many   ARGV[4] `take` or `look`   ARGV[5] the id of the entry
-- answers 1, what is left after it | 0, what is left, the us until there may be enough, the us that one permit takes
-- on average; with both, the rate and the interval | 3, the rate, which is less than is asked for | 4 if there is more to
-- be counted: ask again

-- To have read more entries than this for a denial is worth a write, so that the next reads none.
local FEW = 100

local wanted = whole(ARGV[3], 'the number of permits')
local id, how = ARGV[5], ARGV[4]
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

local s = look(since == 'same' and 'trust' or 'whole', id)
if not s then
  return { 4 }
end
if since ~= 'same' and s.odd then
  -- From now on it is known.
  settle(s, id)
  keep()
end
if wanted == 0 or s.left >= wanted then
  if how == 'take' and wanted > 0 then
    s.left = s.left - wanted
    settle(s, id)
    redis.call('ZADD', permits_key, digits(stamp_ms), pack(id, wanted))
    keep()
  end
  return { 1, math.max(s.left, 0), rate, interval }
end

local wait = wait_for(wanted - s.left, s)
if not wait then
  -- There are fewer entries than there should be. Of many, that is seen when they are counted again.
  if not s.whole and not s.many then
    s = count_all(s.trust)
  end
  wait = wait_for(wanted - s.left, s) or interval * 1000
end
if how == 'take' then
  local worth = s.odd or s.read > FEW
  if worth then
    settle(s, id)
  end
  if worth or keep_alive > 0 then
    keep()
  end
end
return { 0, math.max(s.left, 0), wait, interval * 1000 / rate, rate, interval }

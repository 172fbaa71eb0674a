-- Takes permits if there are enough (`take`), or only reads (`look`).
--
-- ARGV[3] number of permits   ARGV[4] `take` or `look`   ARGV[5] the id of the entry
-- ARGV[6] and on: permits and id of each caller that waits behind the first. Callers are served in
--         this order, as long as there are enough permits
-- reply   1, remaining permits, number of served callers | 0, remaining permits, the us until there
--         may be enough, 1 if Java has taken one of the entries until then; with both, the rate and
--         the interval | 3, the rate, which is below the requested permits | 4 if there is more to
--         count: retry

-- A denial that has read more entries than this writes the result, so that the next one reads none.
local MAX_UNWRITTEN_READS = 100

local wanted = whole(ARGV[3], 'the number of permits')
local id, mode = ARGV[5], ARGV[4]
if wanted > rate then
  return { 3, rate }
end

-- Ids of Tidegate end with the same bytes, those of Java are random.
local of_java = false

-- The us until the oldest remaining entries return `need` permits; nil if there are too few.
local function wait_for(need, s)
  local from, last = s.gone, nil
  local oldest = redis.call('ZRANGE', permits_key, from, from + math.min(need, MAX) - 1, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    local permits, entry_id = unpack_entry(oldest[i])
    of_java = of_java or string.sub(entry_id, -4) ~= string.sub(id, -4)
    if s.cut and i == 1 then
      permits = s.cut.permits
    end
    need, last = need - permits, tonumber(oldest[i + 1])
    if need <= 0 then
      break
    end
  end
  if not last or (need > 0 and #oldest < 2 * MAX) then
    return nil
  end
  -- No entry counts for longer than the interval, rounded up, whatever clock wrote it.
  local wait = (last + interval) * 1000 - now_us
  return math.max(1, math.min(wait, interval * 1000 + 1000))
end

-- Takes the permits of as many callers as there are enough for, and returns their number.
local function take_all(s)
  local entries, permits, served = {}, wanted, 0
  while permits and (permits == 0 or permits <= s.left) do
    if permits > 0 then
      s.left = s.left - permits
      table.insert(entries, digits(stamp_ms))
      table.insert(entries, pack(ARGV[5 + 2 * served], permits))
    end
    served = served + 1
    local next_permits = ARGV[4 + 2 * served]
    permits = next_permits and whole(next_permits, 'the number of permits')
  end
  if entries[1] then
    settle(s, id)
    redis.call('ZADD', permits_key, unpack(entries))
    keep()
  end
  return served
end

local s = look(since == 'same' and 'trust' or 'whole', id)
if not s then
  return { 4 }
end
if since ~= 'same' and s.odd then
  -- From now on this client knows the rate.
  settle(s, id)
  keep()
end
if wanted == 0 or s.left >= wanted then
  local served = mode == 'take' and take_all(s) or 0
  return { 1, math.max(s.left, 0), served, rate, interval }
end

local wait = wait_for(wanted - s.left, s)
if not wait then
  -- There are fewer entries than there should be. In a large set, the next count detects that.
  if not s.whole and not s.progress then
    s = count_all(s.trust)
  end
  wait = wait_for(wanted - s.left, s) or interval * 1000
end
if mode == 'take' then
  local writes = s.odd or s.read > MAX_UNWRITTEN_READS
  if writes then
    settle(s, id)
  end
  if writes or keep_alive > 0 then
    keep()
  end
end
return { 0, math.max(s.left, 0), wait, of_java and 1 or 0, rate, interval }

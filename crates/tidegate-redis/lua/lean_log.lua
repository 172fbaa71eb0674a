-- Decides plain checks of logs, one after the other, each in one atomic step: `sliding-log` and
-- `sliding-window` as a log of sub-windows, without holds and with the limit that the stored value
-- has. What it cannot decide it leaves untouched, for `checks.lua`. As short as `lean.lua`, and for
-- the same reason.
--
-- KEYS  for each check the state and its log
-- ARGV  1 '<Bd' protocol (1), instant in us, -1 for Redis's clock (tests pass one); then for
--         each check '<HHdHc0' how many times, at most 65,533; the argument with its limit; its
--         cost, 0 peeks; the caller, behind the number of its bytes
--       2 and on: limits, each as a value of this limit begins: '<BBBddd' version, algorithm, 1;
--         size, grain, window (see sliding_log.lua)
-- reply '<d' now; then for each check '<H' how many of its times were allowed, and '<ddd' used
--       permits, after the last of these; the span in us until none is; the span until one more
--       check, or one permit if it peeks, would be allowed: 0 at once, -1 never. Instead of all
--       this, 65,535 if `checks.lua` has to decide, or 65,534 if it will need the key of the holds:
--       nothing was written

local call, read, pack, sub = redis.pcall, struct.unpack, struct.pack, string.sub
local MAX, WHOLE, ASK, ASK_HELD = 9007199254740991, 4503599627370495, 65535, 65534
local MARGIN, DAY_MS, MAX_STEPS = 1000000, 86400000, 4
local UNKNOWN = string.rep('\0', 27)
local words, keys = ARGV[1], 0
local protocol, now, from = read('<Bd', words)
local is_test = now >= 0
if protocol ~= 1 then
  return { err = 'ERR TIDEGATE unsupported protocol version; use the script of your version' }
elseif not is_test then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local replies = { pack('<d', now) }
while from <= #words do
  local times, which, cost, caller
  times, which, cost, caller, from = read('<HHdHc0', words, from)
  local head, key, list = ARGV[which], KEYS[keys + 1], KEYS[keys + 2]
  keys = keys + 2
  local asks = #head ~= 27 or times == 0 or times >= ASK_HELD or not (cost >= 0 and cost % 1 == 0)
  local value = call('GET', key)
  local size, grain, window = read('<ddd', asks and UNKNOWN or head, 4)
  local length, at, is_fresh = grain * window, now, true
  local gone, offset, total, newest, expires, drop = 0, 0, 0, 0, 0, 0
  if not value then
    asks = asks or sub(head, 1, 3) ~= '\2\4\1' or length > WHOLE
      or not (grain >= 1 and window >= 1 and size >= 0 and size <= WHOLE)
      or grain % 1 + window % 1 + size % 1 > 0
  elseif #value == 67 and sub(value, 1, 27) == head then
    gone, offset, total, newest, expires = read('<ddddd', value, 28)
    at = now + offset
    local start = at - at % grain
    local counts_from = start - length + grain
    asks = asks or newest >= start + grain -- the clock has stepped back
    if newest >= counts_from and total > gone then
      is_fresh = false
      -- Since the last check a few items have expired; if more have, they are searched.
      local low, high, step = 0, nil, nil
      repeat
        step = high and (low + high - (low + high) % 2) / 2 or low
        local item = call('LINDEX', list, step)
        local instant, sum
        if type(item) == 'string' then
          instant, sum = read('<dd', item)
        end
        if not instant then
          low, high, asks = 0, 0, true -- the items were evicted
        elseif instant >= counts_from then
          high = step
        else
          low, gone = step + 1, sum > gone and sum or gone
          high = high or low > MAX_STEPS and call('LLEN', list)
        end
      until low == high
      drop = low
    end
  else
    asks = true
  end
  if is_fresh then
    gone, offset, total, newest, at = 0, 0, 0, 0, now
  end
  local fits, used, wait = 0, total - gone, 0
  if not asks then
    local room = size - used
    fits = (cost == 0 or room < cost) and 0 or (room - room % cost) / cost
    fits = fits < times and fits or times
    asks = total + fits * cost > WHOLE or at + length > MAX
  end
  if fits > 0 and not asks then
    local instant, done = newest > at and newest or at, nil
    local item = pack('<dd', instant, total + fits * cost) .. (grain > 1 and '' or caller)
    if not is_fresh and newest - newest % grain == instant - instant % grain then
      local last = call('LINDEX', list, -1)
      done = sub(last, 17) == sub(item, 17) and call('LSET', list, -1, item)
    end
    done = done or call('RPUSH', list, item)
    if type(done) == 'table' and done.err then
      asks = true -- the first write: nothing was written
    else
      total, used, newest = total + fits * cost, used + fits * cost, instant
      if is_fresh and done ~= 1 then
        call('LTRIM', list, -1, -1)
      elseif drop > 0 then
        call('LTRIM', list, drop, -1)
      end
      local ends = newest - newest % grain + length - offset
      local state = pack('<dddd', gone, offset, total, newest)
      done = not is_fresh and expires >= ends + MARGIN and call('SETRANGE', key, 27, state)
      if done ~= 67 then
        -- A key that is used again lives longer, so that few checks need a new TTL.
        local ms = ends - now + 999
        ms = (ms - ms % 1000) / 1000
        ms = (is_fresh and ms or ms + (ms - ms % 4) / 4) + 1000
        if is_test and ms < DAY_MS then
          ms = DAY_MS
        end
        local ttl = string.format('%d', ms)
        call('SET', key, head .. state .. pack('<d', now + 1000 * ms), 'PX', ttl)
        call('PEXPIRE', list, ttl)
      end
    end
  end
  if asks then
    local is_held = type(value) == 'string' and (string.byte(value, 3) or 0) % 4 > 1
    replies[#replies + 1] = pack('<H', is_held and ASK_HELD or ASK)
  else
    local needed = cost > 0 and cost or 1
    if fits < times and needed > size then
      wait = -1
    elseif fits < times and used + needed > size then
      -- The first item with this total has to expire; mostly it is the oldest one.
      local must_go, low = total - size + needed, fits > 0 and 0 or drop
      local instant, sum = read('<dd', call('LINDEX', list, low))
      if sum < must_go then
        local high = call('LLEN', list) - 1
        while low < high do
          local middle = (low + high - (low + high) % 2) / 2
          instant, sum = read('<dd', call('LINDEX', list, middle))
          if sum >= must_go then
            high = middle
          else
            low = middle + 1
          end
        end
        instant = read('<d', call('LINDEX', list, low))
      end
      wait = instant - instant % grain + length - at
    end
    local reset = used > 0 and newest - newest % grain + length - at or 0
    replies[#replies + 1] = pack('<Hddd', fits, used, reset, wait)
  end
end
return table.concat(replies)

-- Decides plain checks, one after the other, each in one atomic step: buckets, fixed windows and
-- approximate windows, without holds and with the limit that the stored value has. What it cannot
-- decide it leaves untouched, for `checks.lua`.
--
-- Redis executes all of a script on every call, so this one defines no functions, compares a stored
-- limit as bytes, and replies with states: the caller computes the verdicts from them.
--
-- KEYS  for each part of each check the state
-- ARGV  1 '<Bd' protocol (1), instant in us, -1 for Redis's clock (tests pass one); then for
--         each check '<BH' number of parts, how many times, at most 65,533; then for each part
--         '<Hd' the argument with its limit, and its cost; 0 in all parts peeks
--       2 and on: limits, each as a value of this limit begins (see entries.lua): '<BBB' version,
--         algorithm, 1; then the numbers of the limit, packed as in its algorithm's file. Of a
--         calendar window the length of the present window, and '<d' its start
-- reply '<d' now; then for each check '<H' how many of its times were allowed, and for each part
--       its state as the value has it, after the last of these; before them if it is a queue.
--       Instead of all this, 65,535 if `checks.lua` has to decide, or 65,534 if it will need the
--       key of the holds of the only part: nothing was written for this check

local call, read, pack, sub = redis.pcall, struct.unpack, struct.pack, string.sub
local MAX, WHOLE, ASK, ASK_HELD = 9007199254740991, 4503599627370495, 65535, 65534
local MARGIN, DAY_MS = 1000000, 86400000
local words, first = ARGV[1], 0
local protocol, now, count, times, which, cost, from = read('<BdBHHd', words)
local is_test = now >= 0
if protocol ~= 1 then
  return { err = 'ERR TIDEGATE unsupported protocol version; use the script of your version' }
elseif not is_test then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local last, reply, replies = #words, nil, nil
-- The limit that was read last, since most checks have the same one, and its numbers.
local read_last, head, kind, one, two, three, four, five
while true do
  local fits, asks, is_free, parts = times, times == 0 or times >= ASK_HELD, false, nil
  local key, value, used, at, step, tick, expires, queue
  for i = 1, count do
    local size
    if i > 1 then
      which, cost, from = read('<Hd', words, from)
    end
    if which ~= read_last then
      read_last, head = which, ARGV[which]
      kind = #head
      if kind == 36 then
        one, two, three, four, five = read('<ddddB', head, 4)
      elseif kind == 27 then
        one, two, three = read('<ddd', head, 4)
      elseif kind == 28 then
        one, two, three, four = read('<Bddd', head, 4)
      elseif kind == 20 then
        one, two, three = read('<Bdd', head, 4)
      end
    end
    key, queue = KEYS[first + i], 0
    value = call('GET', key)
    is_free = i == 1 and cost == 0 or is_free
    asks = asks or not (cost >= 0 and cost % 1 == 0) or is_free ~= (cost == 0)
    if kind == 36 then -- a bucket: `used`, `cost` and `size` in units, `step` is the drain
      local permit
      tick, permit, step, size, queue = one, two, three, four, five
      local rest = now % tick
      local present = (now - rest) / tick
      used, at = 0, 0
      if not value then
        asks = asks or sub(head, 1, 3) ~= '\2\1\1' or queue > 1
          or not (tick >= 1 and permit >= 1 and step >= 1 and step <= MAX)
          or not (size >= 0 and size * permit <= WHOLE)
          or tick % 1 + permit % 1 + step % 1 + size % 1 > 0
      elseif #value == 68 and sub(value, 1, 36) == head then
        local units
        units, at, used, expires = read('<dddd', value, 37)
        used = units
        if present > at then
          used = units - (present - at) * step
          if used < 0 then
            used = 0
          end
        end
        asks = asks or at > present + 1 -- the clock has stepped back
      else
        asks = true
      end
      if used < step and rest > 0 then
        present = present + 1
      end
      if used == 0 or at < present then
        at = present
      end
      size, cost = size * permit, cost * permit
      asks = asks or queue == 1 and times > 1 or (at + 2 + size / step) * tick > MAX
    elseif kind == 27 then -- an approximate window: `at` is its number, `step` the previous count
      local window = three
      tick, size = one, two
      local present = (now - now % tick) / tick
      local passed = present % window
      at, step, used = (present - passed) / window, 0, 0
      if not value then
        asks = asks or sub(head, 1, 3) ~= '\2\5\1'
          or not (tick >= 1 and window >= 1 and size >= 0 and size * window <= WHOLE)
          or tick % 1 + window % 1 + size % 1 > 0
      elseif #value == 59 and sub(value, 1, 27) == head then
        local index
        step, used, index, expires = read('<dddd', value, 28)
        if index == at - 1 then
          step, used = used, 0
        elseif index < at then
          step, used = 0, 0
        end
        asks = asks or index > at
      else
        asks = true
      end
      tick = window * tick
      local weighted = step * (window - passed)
      local rest = weighted % window
      weighted = (weighted - rest) / window
      if rest > 0 then
        weighted = weighted + 1
      end
      size = size - weighted
      asks = asks or (at + 2) * tick > MAX
    elseif kind == 20 or kind == 28 then -- a fixed window: `at` is its start, `step` its length
      local mode, bytes = one, head
      size, step = two, three
      at, used = now, 0
      if kind == 28 then
        at, bytes = four, sub(head, 1, 20)
      elseif mode == 0 then
        at = now - now % step
      end
      asks = asks or now < at or now - at >= step
      if not value then
        asks = asks or sub(head, 1, 3) ~= '\2\3\1' or (mode == 1) ~= (kind == 28) or mode > 2
          or not (step >= 1 and size >= 0 and size <= WHOLE and at >= 0)
          or step % 1 + size % 1 + at % 1 > 0
      elseif #value == 44 and sub(value, 1, 20) == bytes then
        local start
        used, start, expires = read('<ddd', value, 21)
        asks = asks or start > at
        if start ~= at then
          if mode == 2 and used > 0 and now - start < step then
            at = start
          else
            used = 0
            asks = asks or mode == 1 and now - start < step -- of another time zone
          end
        end
      else
        asks = true
      end
      asks = asks or at + step > MAX
    else
      asks, size, used = true, 0, 0
    end
    if not asks then
      local room = size - used
      if is_free then
        fits = 0
      elseif room < fits * cost then
        fits = room < cost and 0 or (room - room % cost) / cost
      end
    end
    if count > 1 then
      parts = parts or {}
      for j = 1, i - 1 do
        asks = asks or parts[j][1] == key
      end
      parts[i] = { key, head, value, used, cost, at, step, tick, expires, queue }
    end
  end
  local states = ''
  for i = 1, asks and 0 or count do
    if parts then
      key, head, value, used, cost, at, step, tick, expires, queue = unpack(parts[i])
      kind, read_last = #head, nil
    end
    local offset = kind == 28 and 20 or kind
    local state, ends
    if fits == 0 or queue == 1 then
      local bytes = offset == 20 and 16 or 24
      states = states .. (value and sub(value, offset + 1, offset + bytes) or string.rep('\0', bytes))
    end
    if fits > 0 then
      cost = fits * cost
      used = used + cost
      if kind == 36 then
        local left = used % step
        ends = (used - left) / step
        if left > 0 then
          ends = ends + 1
        end
        ends = (at + ends) * tick
        state = pack('<ddd', used, at, cost)
      elseif kind == 27 then
        ends = (at + 2) * tick
        state = pack('<ddd', step, used, at)
      else
        ends = at + step
        state = pack('<dd', used, at)
      end
      local done = value and expires >= ends + MARGIN and call('SETRANGE', key, offset, state)
      if not value or done ~= #value then
        -- A key that is used again is likely to be used once more: so that this needs no new TTL,
        -- the key of a bucket lives twice as long.
        local ms = ends - now + 999
        ms = (ms - ms % 1000) / 1000
        ms = (value and kind == 36 and 2 * ms or ms) + 1000
        if is_test and ms < DAY_MS then
          ms = DAY_MS
        end
        local bytes = kind == 28 and sub(head, 1, 20) or head
        done = call('SET', key, bytes .. state .. pack('<d', now + 1000 * ms), 'PX',
          string.format('%d', ms))
        if done.err then
          asks = true -- the first write: nothing was written
          break
        end
      end
      states = queue == 1 and states or states .. state
    end
  end
  if asks then
    local is_held = count == 1 and type(value) == 'string' and (string.byte(value, 3) or 0) % 4 > 1
    fits, states = is_held and ASK_HELD or ASK, ''
  end
  first = first + count
  if replies then
    replies[#replies + 1] = pack('<H', fits)
    replies[#replies + 1] = states
  else
    reply = pack('<dH', now, fits) .. states
    replies = from <= last and { reply } or nil
  end
  if from > last then
    return replies and table.concat(replies) or reply
  end
  count, times, which, cost, from = read('<BHHd', words, from)
end

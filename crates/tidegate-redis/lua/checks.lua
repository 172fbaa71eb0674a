-- Decides many checks, one after the other, each in one atomic step: reads and type-checks all its
-- keys, evaluates all its limits, then charges all or none. One that fails does not affect the
-- others.
--
-- Equal checks are sent as one with a number of times: the first of them that fit are allowed, and
-- each key is read and written once.
--
-- KEYS  for each part of each check the state, then its log and its holds, if the part names them
-- ARGV  1 protocol (1)   2 'checks'   3 instant, '' for Redis's clock (tests pass one)
--       4 number of limits, then for each limit:
--         algorithm, its numbers (see each file's "limit"), boundaries of calendar windows: how
--         many, then each; mode: '' enforced, 'shadow' evaluated and not enforced, 'call' enforced,
--         and the limit comes with the call
--       then the number of checks, and for each check:
--         how many times; number of parts, then for each part:
--         which limit, from 1; extra keys: 0 none, 1 the log, 2 the holds, 3 both; cost;
--         caller ('' for none)
-- reply for each check an error, or {status, now, ..}   spans in us
--       status 1 decided: how many were allowed; then, if any was, for each part: for how many of
--         these it was charged, delay, remaining, reset_after, held, all after the last of them;
--         then, if one was denied by any part, or a part has no cost, for each part the verdict on
--         all the others: allowed, retry_after (-1 never), delay, remaining, reset_after, held
--       0 no boundaries contain `now`, retry with others
--       8 nothing was written, retry with the missing keys: for each part its extra keys, as above

local MAX_LIMITS = 1024
local MAX_CHECKS = 1024
local MAX_TIMES = 65536

begin_call()
if argument('protocol') ~= '1' then
  fail('unsupported protocol version; use the script of your version')
end
if argument('operation') ~= 'checks' then
  fail('unknown operation')
end
now = read_clock(read_instant())

local limits = {}
for i = 1, numeric('limits', 1, MAX_LIMITS) do
  limits[i] = read_limit()
  read_mode(limits[i])
end

local function read_part(times, before)
  local rule = limits[numeric('limit', 1, #limits)]
  local part = { kind = rule.kind, alg = rule.alg, limit = rule.limit, at = rule.at,
    in_calendar = rule.in_calendar, is_shadow = rule.is_shadow, is_per_call = rule.is_per_call }
  local extra = numeric('keys', 0, 3)
  part.cost = numeric('cost')
  part.caller = argument('caller')
  if times > 1 and part.alg.delay and part.limit.queue == 1 then
    fail('queue limits cannot be grouped; send times = 1')
  end
  read_keys(part, extra, before)
  return part
end

local checks = {}
for i = 1, numeric('checks', 1, MAX_CHECKS) do
  local times = numeric('times', 1, MAX_TIMES)
  local parts = {}
  for j = 1, numeric('parts', 1, MAX_PARTS) do
    parts[j] = read_part(times, parts)
  end
  checks[i] = { times = times, parts = parts }
end
check_end()

-- How many of `times` fit. All are charged at the same instant, so the result is the same as one
-- after the other.
local function count_fitting(parts, times)
  local fitting = times
  for _, part in ipairs(parts) do
    local view = forecast.view(part)
    local used = forecast.used(part, view.s, view.at)
    if part.own then
      used = forecast.used(part.own, part.own.s, part.own.at)
    end
    part.before = part.own and part.own.s or view.s
    if part.cost > 0 then
      local room = math.max(0, part.limit.capacity - used - view.held)
      part.fitting = math.min(times, floor_div(room, part.cost))
    else
      part.fitting = used <= part.limit.capacity and times or 0
    end
    if not part.is_shadow then
      fitting = math.min(fitting, part.fitting)
    end
  end
  return fitting
end

-- Charges the part for the allowed checks that it allows itself: all of them, unless it is a shadow
-- limit. Appends the resulting state to `reply`.
local function take(part, fitting, reply)
  local charged = part.cost > 0 and math.min(part.fitting, fitting) or 0
  local delay = 0
  if charged > 0 then
    adopt_own(part)
    delay = forecast.delay(part, part.before)
    forecast.expire(part)
    charge(part, charged * part.cost)
    part.dirty = true
  end
  local view = forecast.view(part)
  local used = forecast.used(part, view.s, view.at)
  part.resets = forecast.reset_after(view)
  local n = #reply
  reply[n + 1], reply[n + 2] = charged, delay
  reply[n + 3] = math.max(0, part.limit.capacity - used - view.held)
  reply[n + 4], reply[n + 5] = part.resets, view.held
  return charged
end

local function add_other_verdicts(parts, reply)
  for _, part in ipairs(parts) do
    local v = forecast.look(part, part.cost)
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = v[1] and 1 or 0, v[2], v[3]
    reply[n + 4], reply[n + 5], reply[n + 6] = v[4], v[5], v[7]
  end
end

local function decide(check)
  local parts, times = check.parts, check.times
  local missing, is_free = {}, true
  for i, part in ipairs(parts) do
    if not part.in_calendar then
      return { 0, now }
    end
    is_free = is_free and part.cost == 0
  end
  for i, part in ipairs(parts) do
    missing[i] = load(part)
  end
  local incomplete = missing_reply(missing)
  if incomplete then
    return incomplete
  end
  local fitting = is_free and 0 or count_fitting(parts, times)
  local reply = { 1, now, fitting }
  local others = fitting < times
  if fitting > 0 then
    for _, part in ipairs(parts) do
      others = take(part, fitting, reply) < fitting or others
    end
  end
  if others then
    add_other_verdicts(parts, reply)
  end
  if fitting == 0 then
    for _, part in ipairs(parts) do
      -- So many holds have ended that reading them in every call would cost more than a write.
      if part.ended and part.ended.more then
        forecast.expire(part)
        part.dirty = true
      end
    end
  end
  save_dirty(parts, fitting > 0 and grows or gives_back)
  return reply
end

-- The error as Redis sends it to a single command. Redis 6.2 puts the position in the script before
-- it.
local function error_reply(failure)
  local text = type(failure) == 'table' and failure.err or tostring(failure)
  text = string.gsub(text, '^@user_script: ?%d+: ?', '')
  text = string.gsub(text, '^%-', '')
  if find(text, '^TIDEGATE') or not find(text, '^%u+ ') then
    text = 'ERR ' .. text
  end
  return { err = text }
end

local replies = {}
for i, check in ipairs(checks) do
  local done, reply = pcall(decide, check)
  if not done then
    reply = error_reply(reply)
    -- A replica has written nothing: one error for all checks.
    if not has_written and (find(reply.err, '^READONLY') or find(reply.err, '^MASTERDOWN')) then
      return reply
    end
  end
  replies[i] = reply
end
return replies

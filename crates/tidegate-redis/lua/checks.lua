-- Decides many checks, one after the other, each in one atomic step: reads and type-checks all its
-- keys, looks at all its limits, then charges all or none. One that fails leaves the others alone.
--
-- Equal checks come as one with a number of times: the first of them that fit are allowed, and each
-- key is read and written once.
--
-- KEYS  for each part of each check the state, then its log and its holds, as far as the part says
--       that they come
-- ARGV  1 protocol (1)   2 'checks'   3 instant, '' for Redis's clock (tests pass one)
--       4 number of limits, then for each limit:
--         algorithm, its numbers (see each file's "limit"), boundaries of calendar windows: how many,
--         then each; mode: '' decides, 'shadow' only looks on
--       then the number of checks, and for each check:
--         how many times; number of parts, then for each part:
--         which limit, from 1; what comes beside its state: 0 nothing, 1 the log, 2 the holds, 3 both;
--         cost; who ('' for nobody)
-- reply for each check an error, or {status, now, ..}   spans in us
--       status 1 decided: how many were allowed; then, if any was, for each part: to how many of these
--         it was charged, delay, remaining, reset_after, held, all after the last of them;
--         then, if one was denied by any part, or a part costs nothing, for each part the verdict on
--         all the others: allowed, retry_after (-1 never), delay, remaining, reset_after, held
--       0 no boundary holds `now`, ask again
--       8 nothing was done, ask again with what is missing: places 3 and on say for each part what
--         must come beside its state, as above

local MOST_LIMITS = 1024
local MOST_CHECKS = 1024
local MOST_TIMES = 65536

if argument('protocol') ~= '1' then
  fail('another protocol; use the script of your version')
end
if argument('operation') ~= 'checks' then
  fail('unknown operation')
end
now = read_clock(read_instant())

local limits = {}
for i = 1, numeric('limits', 1, MOST_LIMITS) do
  limits[i] = read_limit()
  limits[i].looks_on = read_mode()
end

local function read_part(times, before)
  local rule = limits[numeric('limit', 1, #limits)]
  local part = { kind = rule.kind, alg = rule.alg, limit = rule.limit, at = rule.at,
    in_calendar = rule.in_calendar, looks_on = rule.looks_on }
  local beside = numeric('keys', 0, 3)
  part.cost = numeric('cost')
  part.who = argument('who')
  if times > 1 and part.alg.delay and part.limit.queue == 1 then
    fail('a queue gives each a turn of its own; send them one by one')
  end
  read_keys(part, beside, before)
  return part
end

local checks = {}
for i = 1, numeric('checks', 1, MOST_CHECKS) do
  local times = numeric('times', 1, MOST_TIMES)
  local parts = {}
  for j = 1, numeric('parts', 1, MOST_PARTS) do
    parts[j] = read_part(times, parts)
  end
  checks[i] = { times = times, parts = parts }
end
no_more_words()

-- How many of `times` fit. The costs of all of them are charged at the same instant, so it comes to
-- the same as one after the other.
local function count_fitting(parts, times)
  local fitting = times
  for _, part in ipairs(parts) do
    local view = forecast.view(part)
    local used = forecast.used(part, view.s, view.at)
    part.before = view.s
    if part.cost > 0 then
      local room = math.max(0, part.limit.capacity - used - view.held)
      part.fitting = math.min(times, floor_div(room, part.cost))
    else
      part.fitting = used <= part.limit.capacity and times or 0
    end
    if not part.looks_on then
      fitting = math.min(fitting, part.fitting)
    end
  end
  return fitting
end

-- Charges the part for as many of those that are allowed as it allows itself: all of them, unless it
-- only looks on. Says how it stands then.
local function take(part, fitting, reply)
  local charged = part.cost > 0 and math.min(part.fitting, fitting) or 0
  local delay = 0
  if charged > 0 then
    if part.before and part.alg.delay then
      delay = part.alg.delay(part.limit, part.before, part.at)
    end
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

local function answer_others(parts, reply)
  for _, part in ipairs(parts) do
    local v = forecast.look(part, part.cost)
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = v[1] and 1 or 0, v[2], v[3]
    reply[n + 4], reply[n + 5], reply[n + 6] = v[4], v[5], v[7]
  end
end

local function decide(check)
  local parts, times = check.parts, check.times
  local missing, nothing = {}, true
  for i, part in ipairs(parts) do
    if not part.in_calendar then
      return { 0, now }
    end
    nothing = nothing and part.cost == 0
  end
  for i, part in ipairs(parts) do
    missing[i] = load(part)
  end
  local asks = ask_for(missing)
  if asks then
    return asks
  end
  local fitting = nothing and 0 or count_fitting(parts, times)
  local reply = { 1, now, fitting }
  local others = fitting < times
  if fitting > 0 then
    for _, part in ipairs(parts) do
      others = take(part, fitting, reply) < fitting or others
    end
  end
  if others then
    answer_others(parts, reply)
  end
  if fitting == 0 then
    for _, part in ipairs(parts) do
      -- So many holds have ended that looking at them again and again would cost more.
      if part.ended and part.ended.more then
        forecast.expire(part)
        part.dirty = true
      end
    end
  end
  save_dirty(parts, fitting > 0 and grows or gives_back)
  return reply
end

-- What went wrong, as Redis says it to whoever sends a command of his own. Redis 6.2 puts before it
-- where in the script that was.
local function said(problem)
  local text = type(problem) == 'table' and problem.err or tostring(problem)
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
    reply = said(reply)
    -- A server that serves nobody has done nothing, and says so to all at once.
    if not has_written and (find(reply.err, '^READONLY') or find(reply.err, '^MASTERDOWN')) then
      return reply
    end
  end
  replies[i] = reply
end
return replies

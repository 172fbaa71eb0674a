-- Run-time rules and overrides of a fleet: a hash, and a head that is replaced by every write. A
-- poll is also the heartbeat of its process.
--
-- KEYS[1] the head   KEYS[2] the hash   KEYS[3] the last heartbeats, by process
-- ARGV[1] poll | read | write
-- poll    ARGV[2] the id of the process
-- write   ARGV[2] the head that the caller has read, empty for none   ARGV[3] the new head
--         ARGV[4] number of fields to set; then name and value of each, then fields to delete
-- reply   seconds and microseconds of the clock, head, number of fields;
--         then poll: processes with a heartbeat in the last 5 s, 0 if it is not known
--         read: names and values   write: 1 if written, 0 if the head was another one

local written = 0
if ARGV[1] == 'write' and (redis.call('GET', KEYS[1]) or '') == ARGV[2] then
  local at = 5
  for _ = 1, tonumber(ARGV[4]) do
    redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
    at = at + 2
  end
  for nth = at, #ARGV do
    redis.call('HDEL', KEYS[2], ARGV[nth])
  end
  redis.call('SET', KEYS[1], ARGV[3])
  written = 1
end
local time = redis.call('TIME')
local reply = { time[1], time[2], redis.call('GET', KEYS[1]) or '', redis.call('HLEN', KEYS[2]) }
if ARGV[1] == 'poll' then
  -- A user who may not write, and a server that refuses writes, still get their reply.
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local beat = redis.pcall('ZADD', KEYS[3], now, ARGV[2])
  reply[5] = 0
  if not (type(beat) == 'table' and beat.err) then
    local old = redis.call('ZCOUNT', KEYS[3], '-inf', now - 60000)
    if old > 0 then
      redis.call('ZREMRANGEBYRANK', KEYS[3], 0, old - 1)
    end
    redis.call('PEXPIRE', KEYS[3], 60000)
    reply[5] = redis.call('ZCOUNT', KEYS[3], now - 5000, '+inf')
  end
elseif ARGV[1] == 'read' then
  reply[5] = redis.call('HGETALL', KEYS[2])
elseif ARGV[1] == 'write' then
  reply[5] = written
end
return reply

-- Sets the TTL of the limiter and of all its keys.
--
-- ARGV[3] ms
-- reply   1 if there was a limiter, else 0

local exists = redis.call('PEXPIRE', KEYS[1], ARGV[3])
for i = 2, 7 do
  redis.call('PEXPIRE', KEYS[i], ARGV[3])
end
return { exists }

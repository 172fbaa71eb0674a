-- Lets the limiter live for so long, and all that belongs to it.
--
-- ARGV[3] ms
-- answers 1 if there was one, else 0

local there = redis.call('PEXPIRE', KEYS[1], ARGV[3])
for i = 2, 7 do
  redis.call('PEXPIRE', KEYS[i], ARGV[3])
end
return { there }

-- Lets the limiter live for so long, and all that belongs to it.
--
-- ARGV[2] ms
-- answers 1 if there was one, else 0

local there = redis.call('PEXPIRE', KEYS[1], ARGV[2])
for i = 2, 5 do
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return { there }

-- A counter that expires. KEYS 1 the key   ARGV 1 window in ms   2 limit   reply 1 if allowed
local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return count <= tonumber(ARGV[2]) and 1 or 0

-- Takes an entry back of which nobody has heard.
--
-- ARGV[2] how many permits   ARGV[3] the id of the entry
-- answers 1, how many came back

local taken = whole(ARGV[2], 'the number of permits')
local text = redis.call('GET', value_key)
local left = text and whole(text, 'what is left')
if redis.call('ZREM', permits_key, pack(ARGV[3], taken)) == 0 then
  return { 1, 0 }
end
if left then
  redis.call('SET', value_key, digits(math.min(left + taken, rate)))
  keep()
end
return { 1, taken }

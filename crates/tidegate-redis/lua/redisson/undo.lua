-- Takes an entry back of which nobody has heard.
--
-- ARGV[3] how many permits   ARGV[4] the id of the entry
-- answers 1, how many came back | 4 if there is more to be counted: ask again

local id, taken = ARGV[4], whole(ARGV[3], 'the number of permits')
local member = pack(id, taken)
if not redis.call('ZSCORE', permits_key, member) then
  return { 1, 0 }
end
local s = look('whole', id)
if not s then
  return { 4 }
end
-- What has expired, or had to go, has come back already.
if redis.call('ZRANK', permits_key, member) < s.gone then
  return { 1, 0 }
end
local cut = s.cut
settle(s, id)
if cut and cut.member == member then
  taken = cut.permits
  member = pack(id, taken)
end
redis.call('ZREM', permits_key, member)
redis.call('SET', value_key, digits(math.min(s.left + taken, rate)), 'KEEPTTL')
keep()
return { 1, taken }

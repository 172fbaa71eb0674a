-- Takes back an entry whose reply was lost.
--
-- ARGV[3] number of permits   ARGV[4] the id of the entry
-- reply   1, number of returned permits | 4 if there is more to count: retry

local id, taken = ARGV[4], whole(ARGV[3], 'the number of permits')
local member = pack(id, taken)
if not redis.call('ZSCORE', permits_key, member) then
  return { 1, 0 }
end
local s = look('whole', id)
if not s then
  return { 4 }
end
-- Entries that have expired or were removed have returned their permits already.
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

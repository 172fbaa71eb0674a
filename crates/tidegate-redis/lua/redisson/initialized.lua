-- Returns 2 if the limiter is not initialized.

local config = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
if not (config[1] and config[2] and config[3]) then
  return { 2 }
end
configure(config)

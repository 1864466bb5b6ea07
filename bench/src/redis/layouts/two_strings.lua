-- One counter per key and window, with the window's number in the name. A decision reads the last two.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, window = tonumber(args[1]), tonumber(args[2])
local number = math.floor(now / window)
local name = keys[1] .. ':' .. number
local counts = redis.call('MGET', keys[1] .. ':' .. (number - 1), name)
local prev, cur = tonumber(counts[1] or 0), tonumber(counts[2] or 0)
if cur + math.ceil(prev * (window - now % window) / window) >= limit then
  return 0
end
-- Sets the expiry once, when the counter is new.
if redis.call('INCR', name) == 1 then
  redis.call('PEXPIRE', name, args[3])
end
return 1

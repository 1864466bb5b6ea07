-- One hash per key, with a field for each of the three numbers.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, window = tonumber(args[1]), tonumber(args[2])
local start, prev, cur = now - now % window, 0, 0
local stored = redis.call('HMGET', keys[1], 'start', 'prev', 'cur')
local stored_start = tonumber(stored[1])
if stored_start == start then
  prev, cur = tonumber(stored[2]), tonumber(stored[3])
elseif stored_start and stored_start + window == start then
  prev = tonumber(stored[3])
end
if cur + math.ceil(prev * (window - (now - start)) / window) >= limit then
  return 0
end
if stored_start == start then
  -- The other fields and the expiry are already correct.
  redis.call('HINCRBY', keys[1], 'cur', 1)
else
  redis.call('HSET', keys[1], 'start', string.format('%.0f', start), 'prev', prev, 'cur', 1)
  redis.call('PEXPIRE', keys[1], args[3])
end
return 1

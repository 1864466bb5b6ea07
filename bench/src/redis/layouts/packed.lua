-- One string of twelve bytes per key: start of the window, count of the previous window, count of the current one.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, window = tonumber(args[1]), tonumber(args[2])
local admitted = 0
for i = 1, #keys do
  local start, prev, cur = now - now % window, 0, 0
  local raw = redis.call('GET', keys[i])
  if raw then
    local stored_start, stored_prev, stored_cur = struct.unpack('>I6I3I3', raw)
    if stored_start == start then
      prev, cur = stored_prev, stored_cur
    elseif stored_start + window == start then
      prev = stored_cur
    end
  end
  if cur + math.ceil(prev * (window - (now - start)) / window) < limit then
    redis.call('SET', keys[i], struct.pack('>I6I3I3', start, prev, cur + 1), 'PX', args[3])
    admitted = admitted + 1
  end
end
return admitted

-- KEYS: one per operation. ARGV: the time to decide by in milliseconds (empty: the server's), one byte per operation
-- that says which of the distinct ones it is, and then for each distinct one its description, and for how long its record
-- lives (a simple one: altogether; others: beyond what is computed here).
-- Answers with the time, and per operation whether it is allowed and what was known of the key before.

local invoke, byte = redis.pcall, string.byte
local pack, unpack = struct.pack, struct.unpack

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local answers, places = { now }, ARGV[2]
local place, is_simple, verb, cost, _, limit, window, life
local ops, read_op, execute

for i = 1, #KEYS do
  local key = KEYS[i]
  if byte(places, i) ~= place then
    place = byte(places, i)
    is_simple, verb, cost, _, limit, window = unpack('>BBI7BI7I5', ARGV[2 * place + 1])
    life = ARGV[2 * place + 2]
  end
  local raw = invoke('GET', key)
  local allowed, before, failed

  -- One sliding window of whole seconds whose counts are below 2^16, before its seconds exceed 2^32 in 2106: what
  -- nearly everyone has, decided in line.
  if is_simple == 1 and now < 4294967296000 and (not raw or #raw == 12) then
    local start, prev, cur, is_known = now - now % window, 0, 0, not raw
    if raw then
      local tag, stored_start, stored_window, stored_prev, stored_cur = unpack('>BI4I3I2I2', raw)
      stored_start = stored_start * 1000
      local age = now - stored_start
      is_known = tag == 1 and stored_window * 1000 == window and age >= 0
      if is_known and age < window then
        if stored_prev + stored_cur > 0 then
          start, prev, cur = stored_start, stored_prev, stored_cur
        end
      elseif is_known and age < 2 * window and stored_cur > 0 then
        start, prev = stored_start + window, stored_cur
      end
    end
    if is_known then
      local used = cur
      if prev > 0 then
        used = cur + math.ceil(prev * (window - (now - start)) / window)
      end
      allowed, before = 0, raw
      if used + cost <= limit then
        allowed = 1
        if verb == 1 and cost > 0 then
          local record = pack('>BI4I3I2I2', 1, start / 1000, window / 1000, prev, cur + cost)
          failed = invoke('SET', key, record, 'PX', life).err
        end
      end
    end
  end

  if not allowed then
    if raw and raw.err then
      failed = raw.err
    else
      if not ops then
        ops = {}
        read_op, execute = general(invoke)
      end
      ops[place] = ops[place] or read_op(ARGV[2 * place + 1])
      local slack, is_sound = tonumber(life), nil
      if is_simple == 1 then
        slack = slack - 2 * window
      end
      -- A record that makes no sense must not take the other keys of the call with it.
      is_sound, allowed, before = pcall(execute, key, raw, ops[place], now, slack)
      if not is_sound then
        failed = 'SLIDEGATECORRUPT ' .. tostring(allowed)
      elseif not allowed then
        failed = before
      end
    end
  end

  if failed then
    answers[2 * i], answers[2 * i + 1] = { err = failed }, false
  else
    answers[2 * i], answers[2 * i + 1] = allowed, before
  end
end

return answers

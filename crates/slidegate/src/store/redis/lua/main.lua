-- KEYS: one per operation. ARGV: one byte per operation that says which of the distinct ones it is (none: all the first),
-- with a zero and the time to decide by before them if that is not the server's; and then the description of each distinct
-- one.
-- Answers with the time, a 1 or 0 per operation that says whether it is allowed, and what was known of each key before.

local invoke, byte, sub, format = redis.pcall, string.byte, string.sub, string.format
local pack, unpack, spread, ceil = struct.pack, struct.unpack, unpack, math.ceil

local now
local places = ARGV[1]
if byte(places) == 0 then
  now = unpack('>I7', places, 2)
  places = sub(places, 9)
else
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Reading all keys at once costs the server far less than one after the other. What is not among them, or has been written
-- since, is read again by itself.
local known = {}
if #KEYS > 1 then
  known = invoke('MGET', spread(KEYS))
  if known.err then
    return known
  end
end

local answers, flags, written = { now, '' }, {}, {}
local place, is_simple, code, verb, cost, life, _, limit, window, base, delta
local ops, read_op, execute

for i = 1, #KEYS do
  local key = KEYS[i]
  local wanted = byte(places, i) or 1
  if wanted ~= place then
    place = wanted
    is_simple, code, verb, cost, life, _, limit, window = unpack('>BBBI7I6BI7I5', ARGV[place + 1])
    base = (1577836800000 - 1577836800000 % window) / window
    delta = cost == 1 and '1000000' or format('%d', cost * 1000000)
  end
  local raw = known[i]
  if not raw or written[key] then
    raw = invoke('GET', key)
  end
  written[key] = true
  local flag, failed

  if raw and raw.err then
    failed = raw.err
  elseif is_simple == 1 and now < 4294967296000 then
    -- One sliding window of whole seconds whose counts are below 2^16, before its seconds exceed 2^32 in 2106: what
    -- nearly everyone has, decided in line. sliding_window.lua says how it is written.
    local start, prev, cur, is_known = now - now % window, 0, 0, not raw
    local is_same, is_number = false, false
    if raw then
      local stored_start, stored_prev, stored_cur
      local tag = byte(raw)
      if tag and tag >= 48 then
        local number, counts = tonumber(sub(raw, 1, -11)), tonumber(sub(raw, -10))
        if number and counts then
          local stored_code = counts % 100
          is_known, is_number = stored_code == code, true
          stored_prev = (counts - stored_code) / 100 % 10000
          stored_cur = (counts - counts % 1000000) / 1000000
          stored_start = (number + base) * window
        end
      elseif tag == 1 and #raw == 12 then
        local stored_window
        _, stored_start, stored_window, stored_prev, stored_cur = unpack('>BI4I3I2I2', raw)
        is_known = stored_window * 1000 == window
        stored_start = stored_start * 1000
      end
      local age = is_known and now - stored_start or -1
      is_known = age >= 0
      if is_known and age < window then
        if stored_prev + stored_cur > 0 then
          start, prev, cur, is_same = stored_start, stored_prev, stored_cur, true
        end
      elseif is_known and age < 2 * window and stored_cur > 0 then
        start, prev = stored_start + window, stored_cur
      end
    end
    if is_known then
      local used = cur
      if prev > 0 then
        used = cur + ceil(prev * (window - (now - start)) / window)
      end
      flag = '0'
      if used + cost <= limit then
        flag = '1'
        if verb == 1 and cost > 0 then
          cur = cur + cost
          local number = start / window - base
          local fits = code > 0 and cur < 10000 and prev < 10000 and number % 1 == 0 and number > 0 and number < 922337203
          local kept
          if is_same and is_number and fits then
            -- In the window of the one before, the record is the same number with more counted, and lives as long.
            kept = invoke('INCRBY', key, delta)
          else
            local record
            if fits then
              record = format('%d%010d', number, cur * 1000000 + prev * 100 + code)
            else
              record = pack('>BI4I3I2I2', 1, start / 1000, window / 1000, prev, cur)
            end
            if is_same then
              kept = invoke('SET', key, record, 'KEEPTTL')
            else
              kept = invoke('SET', key, record, 'PX', life)
            end
          end
          failed = type(kept) == 'table' and kept.err
        end
      end
    end
  end

  if not flag and not failed then
    if not ops then
      ops = {}
      read_op, execute = general(invoke)
    end
    ops[place] = ops[place] or read_op(ARGV[place + 1])
    local slack = life
    if is_simple == 1 then
      slack = slack - 2 * window
    end
    -- A record that makes no sense must not take the other keys of the call with it.
    local is_sound, allowed, before = pcall(execute, key, raw, ops[place], now, slack)
    if not is_sound then
      failed = 'SLIDEGATECORRUPT ' .. tostring(allowed)
    elseif not allowed then
      failed = before
    else
      flag, raw = allowed, before
    end
  end

  if failed then
    flag, raw = '0', { err = failed }
  end
  flags[i], answers[i + 2] = flag, raw
end

answers[2] = table.concat(flags)
return answers

-- Decides operations. KEYS: one per operation. ARGV: a header, and then the distinct operations. The header is empty in the
-- usual case, else it consists of the flags in one byte (1: a key is repeated, 2: the time is given), the time, the grain of a
-- given time, and one byte per operation, the index of the distinct operation (without these bytes, all are the first).
--
-- Returns the time, the indexes of the denied operations, one byte each, and the prior records of the keys: as one text if
-- all are numbers, because many parts cost more than the decision.

local invoke, byte, char, sub, format = redis.pcall, string.byte, string.char, string.sub, string.format
local pack, unpack, spread, ceil = struct.pack, struct.unpack, unpack, math.ceil

-- The moment is up to the grain later. The server's time is rounded down to a millisecond.
local now, grain, places, written = nil, 0, '', nil
if ARGV[1] ~= '' then
  local options, time, at = unpack('>BI7', ARGV[1])
  if options >= 2 then
    now = time
    grain, at = unpack('>I4', ARGV[1], at)
  end
  places = sub(ARGV[1], at)
  written = options % 2 == 1 and {}
end
if not now then
  local time = redis.call('TIME')
  now, grain = time[1] * 1000 + math.floor(time[2] / 1000), 1
end

-- Reading all keys at once costs the server far less than reading each. A key that is absent, or was written since, is read
-- again by itself.
local known = {}
if #KEYS > 1 then
  known = invoke('MGET', spread(KEYS))
  if known.err then
    return known
  end
end

local denied, is_text = '', true
local place, is_simple, code, verb, cost, life, _, limit, window, base, this_start, left, head, delta
local ops, read_op, execute

for i = 1, #KEYS do
  local key = KEYS[i]
  local wanted = places == '' and 1 or byte(places, i)
  if wanted ~= place then
    place = wanted
    is_simple, code, verb, cost, life, _, limit, window = unpack('>BBBI7I6BI7I5', ARGV[place + 1])
    -- A check that publishes no invalidation.
    verb = verb == 129 and 1 or verb
    base = (1577836800000 - 1577836800000 % window) / window
    this_start = now - now % window
    left = this_start + window - now
    delta = cost == 1 and '1' or format('%d', cost)
    -- One sliding window of whole seconds with counts below 2^16, the most common policy, is decided in line, until its
    -- seconds exceed 2^32 in 2106. sliding_window.lua describes the record.
    is_simple = is_simple == 1 and now < 4294967296000
    head = false
    local number = this_start / window - base
    if is_simple and code > 0 and number > 0 and number < 922337203 then
      head = format('%d%02d', number, code)
    end
  end
  local raw, is_allowed, failed = known[i], nil, nil
  if not raw or written and written[key] then
    raw = invoke('GET', key)
    if type(raw) == 'table' then
      raw, failed = false, raw.err
    end
    known[i] = raw or ''
  end
  if written then
    written[key] = true
  end

  local cur, prev
  if head and raw and sub(raw, 1, -9) == head then
    -- Digit by digit, which is cheaper than a substring and its conversion. 53328 is the value of four zeros in ASCII.
    local a, b, c, d, e, f, g, h = byte(raw, -8, -1)
    prev, cur = a * 1000 + b * 100 + c * 10 + d - 53328, e * 1000 + f * 100 + g * 10 + h - 53328
  end
  if cur and cur + cost < 10000 then
    -- Within one window, spending is an addition to the record, whose expiry stays the same.
    local used = cur
    if prev > 0 then
      used = cur + ceil(prev * left / window)
    end
    is_allowed = used + cost <= limit
    if is_allowed and verb == 1 and cost > 0 then
      local kept = invoke('INCRBY', key, delta)
      failed = type(kept) == 'table' and kept.err
    end
  elseif is_simple and not failed then
    local start, is_known, is_same = this_start, not raw, false
    prev, cur = 0, 0
    if raw then
      local stored_start, stored_prev, stored_cur
      local tag = byte(raw)
      if tag and tag >= 48 then
        local number, digits = tonumber(sub(raw, 1, -11)), tonumber(sub(raw, -10))
        if number and digits then
          stored_cur = digits % 10000
          stored_prev = (digits - stored_cur) / 10000 % 10000
          is_known = (digits - digits % 100000000) / 100000000 == code
          stored_start = (number + base) * window
        end
      elseif tag == 1 and #raw == 12 then
        local stored_window
        _, stored_start, stored_window, stored_prev, stored_cur = unpack('>BI4I3I2I2', raw)
        is_known = stored_window * 1000 == window
        stored_start, is_text = stored_start * 1000, false
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
      is_allowed = used + cost <= limit
      if is_allowed and verb == 1 and cost > 0 then
        cur = cur + cost
        local number, record = start / window - base, nil
        if code > 0 and cur < 10000 and prev < 10000 and number % 1 == 0 and number > 0 and number < 922337203 then
          record = format('%d%010d', number, code * 100000000 + prev * 10000 + cur)
        else
          record = pack('>BI4I3I2I2', 1, start / 1000, window / 1000, prev, cur)
        end
        local kept
        if is_same then
          kept = invoke('SET', key, record, 'KEEPTTL')
        else
          kept = invoke('SET', key, record, 'PX', life)
        end
        failed = kept.err
      end
    end
  end

  if is_allowed == nil and not failed then
    if not ops then
      ops = {}
      read_op, execute = general(invoke)
    end
    ops[place] = ops[place] or read_op(ARGV[place + 1])
    local slack = life
    if byte(ARGV[place + 1]) == 1 then
      slack = slack - 2 * window
    end
    -- An invalid record must not fail the other keys of the call.
    local is_sound, allowed, before = pcall(execute, key, raw, ops[place], now, grain, slack)
    if not is_sound then
      failed = 'SLIDEGATECORRUPT ' .. tostring(allowed)
    elseif not allowed then
      failed = before
    else
      is_allowed, known[i] = allowed == '1', before or ''
      is_text = is_text and not before
    end
  end

  if failed then
    known[i], is_text = { err = failed }, false
  elseif not is_allowed then
    denied = denied .. char(i)
  end
end

return { now, denied, is_text and table.concat(known, ',') or known }

-- sliding-log (tag 7): the window, the total count, the newest entry, the times before the first older entry (`base`) and
-- of the last (`tail`), and the older entries. Each is the milliseconds since the entry before, doubled, plus one if a count
-- other than 1 follows; both in LEB128.

local LOG_HEADER = '>BI5I7I6I7I6I6I3'
local MAX_LOG_BYTES = 131072

local function write_varint(value)
  local bytes = ''
  while value >= 128 do
    bytes = bytes .. char(value % 128 + 128)
    value = floor(value / 128)
  end
  return bytes .. char(value)
end

local function write_entry(delta, count)
  if count == 1 then
    return write_varint(delta * 2)
  end
  return write_varint(delta * 2 + 1) .. write_varint(count)
end

local function read_varint(bytes, at)
  local value, unit = 0, 1
  while true do
    local digit = byte(bytes, at)
    at = at + 1
    if digit < 128 then
      return value + digit * unit, at
    end
    value, unit = value + (digit - 128) * unit, unit * 128
  end
end

-- Returns the count and the time of the entry at `at`, and the position of the next entry.
local function read_entry(bytes, at, time)
  local head, after = read_varint(bytes, at)
  local count = 1
  if head % 2 == 1 then
    head, count, after = head - 1, read_varint(bytes, after)
  end
  return count, time + head / 2, after
end

local function write_log(log)
  local header = pack(LOG_HEADER, 7, log.window, log.total, log.newest, log.count, log.base, log.tail, #log.older)
  return header .. log.older
end

local function clear_log(window)
  return { window = window, total = 0, newest = 0, count = 0, base = 0, tail = 0, older = '' }
end

local function append_log(log, now, count)
  if count == 0 then
    return
  end
  log.total = log.total + count
  if log.count > 0 and log.newest == now then
    log.count = log.count + count
    return
  end
  if log.count > 0 then
    if log.older == '' then
      log.base, log.tail = log.newest, log.newest
    end
    log.older = log.older .. write_entry(log.newest - log.tail, log.count)
    log.tail = log.newest
  end
  log.newest, log.count = now, count
end

-- Adds units beyond the limit. They move the newest entry forward, if the entry before it is within an eighth of the window.
local function append_beyond(log, now, count)
  if log.count == 0 or log.older == '' or now - log.tail > floor(log.window / 8) then
    return append_log(log, now, count)
  end
  log.total, log.newest, log.count = log.total + count, now, log.count + count
end

-- Returns the log without the entries that have expired in the view.
local function roll_log(state, view, quota)
  local log = clear_log(quota.window)
  if view.is_rebased or view.used == 0 then
    append_log(log, view.stamp, view.used)
    return log
  end
  log.total, log.newest, log.count, log.tail = view.used, state.newest, state.count, state.tail
  log.base, log.older = view.base, sub(state.older, view.first)
  return log
end

-- Calls `each(count, time, sum of the counts so far)` for each live entry, the oldest first, until it returns true.
local function walk_log(state, view, each)
  local at, time, sum = view.first, view.base, 0
  while at <= #state.older do
    local count
    count, time, at = read_entry(state.older, at, time)
    sum = sum + count
    if each(count, time, sum) then
      return
    end
  end
  each(state.count, state.newest, sum + state.count)
end

local sliding_log = {
  read = function(record, at)
    local _, window, total, newest, count, base, tail, length, after = unpack(LOG_HEADER, record, at)
    local older = sub(record, after, after + length - 1)
    if #older ~= length then
      error('the record is cut short')
    end
    local state = { window = window, total = total, newest = newest, count = count, base = base, tail = tail }
    state.older = older
    return state, after + length
  end,

  empty = function(quota)
    return clear_log(quota.window)
  end,

  view = function(state, quota, now, grain)
    local stamp, is_rebased
    now, stamp, is_rebased = passed(now, grain, state.newest, quota.window)
    if is_rebased then
      return { stamp = stamp, used = state.total, is_rebased = true, is_adjusted = true, first = 1, base = state.base }
    end
    if state.count == 0 or state.newest + quota.window <= now then
      return { stamp = stamp, used = 0, first = 1, base = state.base }
    end
    local at, time, used = 1, state.base, state.total
    while at <= #state.older do
      local count, entry_time, after = read_entry(state.older, at, time)
      if entry_time + quota.window > now then
        break
      end
      at, time, used = after, entry_time, used - count
    end
    return { stamp = stamp, used = used, first = at, base = time, is_adjusted = state.window ~= quota.window }
  end,

  commit = function(state, view, quota, spent)
    local log = roll_log(state, view, quota)
    if spent > 0 and view.used + spent > quota.limit then
      append_beyond(log, view.stamp, spent)
    else
      append_log(log, view.stamp, spent)
    end
    if #log.older > MAX_LOG_BYTES then
      return nil
    end
    return write_log(log)
  end,

  refund = function(state, view, quota, amount)
    local log = roll_log(state, view, quota)
    local left = at_most(amount, log.total)
    if left == log.total then
      return write_log(clear_log(quota.window)), 0
    end
    log.total = log.total - left
    local at = 1
    while left > 0 and at <= #log.older do
      local count, time, after = read_entry(log.older, at, log.base)
      if left < count then
        log.older = write_entry(time - log.base, count - left) .. sub(log.older, after)
        return write_log(log), log.total
      end
      at, log.base, left = after, time, left - count
    end
    log.older = sub(log.older, at)
    log.count = log.count - left
    return write_log(log), log.total
  end,

  life = function(view, quota, now)
    return view.stamp + quota.window - now
  end,

  span = function(state)
    return state.newest, state.count > 0 and state.newest + state.window or 0
  end,

  -- Returns a log of three or four entries that yields the same numbers in the response: the oldest entry, and the entries
  -- whose expiry frees enough units.
  excerpt = function(state, view, quota, op, is_allowed)
    if view.is_rebased or view.used == 0 then
      local log = clear_log(state.window)
      append_log(log, state.newest, view.used)
      return write_log(log)
    end
    local wanted = { 1, at_least(1, view.used - quota.limit + 1) }
    if op.verb == REFUND then
      local left = at_least(view.used - op.cost, 0)
      wanted = { op.cost + 1, op.cost + at_least(1, left - quota.limit + 1) }
    elseif op.verb == CHARGE then
      local used = view.used + chargeable(view.used, op.cost)
      wanted = { 1, at_least(1, used - quota.limit), at_least(1, used - quota.limit + 1), view.used - state.count }
      table.sort(wanted)
    elseif not is_allowed and op.cost <= quota.limit then
      wanted[3] = at_least(1, view.used + op.cost - quota.limit)
      table.sort(wanted)
    end
    local log, next_wanted, kept = clear_log(state.window), 1, 0
    walk_log(state, view, function(_, time, sum)
      while wanted[next_wanted] and wanted[next_wanted] <= sum do
        append_log(log, time, wanted[next_wanted] - kept)
        kept, next_wanted = wanted[next_wanted], next_wanted + 1
      end
      return not wanted[next_wanted]
    end)
    append_log(log, state.newest, view.used - kept)
    return write_log(log)
  end,
}

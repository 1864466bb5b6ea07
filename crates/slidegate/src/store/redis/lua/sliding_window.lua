-- sliding-window: start and length of the current window, the previous window's count and the current one's. The record has
-- the smallest form that fits:
-- * a decimal number, which Redis stores as an integer: the window's number since 2020, two digits for its length as an index
--   of USUAL_WINDOWS, four for the previous count, and four for the current one. Spending is an addition, and a comparison
--   of the leading digits shows whether the window is the current one;
-- * narrow (tag 1): whole seconds and counts below 2^16, in 12 bytes;
-- * wide (tag 2): 26 bytes.

local USUAL_WINDOWS = {
  1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 28800, 43200, 86400,
  172800, 604800, 2592000,
}
local Y2020 = 1577836800000

local function write_window(quota, start, prev, cur)
  local window = quota.window
  if quota.code > 0 and start % window == 0 and prev < 10000 and cur < 10000 then
    local number = start / window - floor(Y2020 / window)
    if number > 0 and number < 922337203 then
      return string.format('%d%010d', number, quota.code * 100000000 + prev * 10000 + cur)
    end
  end
  local is_narrow = prev < 65536 and cur < 65536 and start % 1000 == 0 and window % 1000 == 0
  if is_narrow and window < 16777216000 and start < 4294967296000 then
    return pack('>BI4I3I2I2', 1, start / 1000, window / 1000, prev, cur)
  end
  return pack('>BI6I5I7I7', 2, start, window, prev, cur)
end

local function read_decimal(record)
  local counts = tonumber(sub(record, -10))
  local window = USUAL_WINDOWS[floor(counts / 100000000)] * 1000
  local start = (tonumber(sub(record, 1, -11)) + floor(Y2020 / window)) * window
  return { start = start, window = window, prev = floor(counts / 10000) % 10000, cur = counts % 10000 }
end

local sliding_window = {
  read = function(record, at, tag)
    local start, window, prev, cur, after
    if tag == 1 then
      start, window, prev, cur, after = unpack('>I4I3I2I2', record, at + 1)
      start, window = start * 1000, window * 1000
    else
      start, window, prev, cur, after = unpack('>I6I5I7I7', record, at + 1)
    end
    return { start = start, window = window, prev = prev, cur = cur }, after
  end,

  empty = function(quota)
    return { start = 0, window = quota.window, prev = 0, cur = 0 }
  end,

  view = function(state, quota, now)
    local window, start, prev, cur = state.window, state.start, state.prev, state.cur
    local is_adjusted = false
    if now < start then
      if start - now > window then
        start, is_adjusted = window_start(quota, window, now), true
      end
    elseif now - start >= window then
      if now - start < 2 * window then
        start, prev, cur = start + window, cur, 0
      else
        prev, cur = 0, 0
      end
    end
    if prev == 0 and cur == 0 then
      return { start = window_start(quota, quota.window, now), prev = 0, cur = 0, used = 0 }
    end
    local left = window - at_least(now - start, 0)
    local used = mul_div_ceil(prev, left, window) + cur
    -- Units of a longer window count as spent now. Units of a shorter one do so with the next spent unit.
    if window > quota.window and used > 0 then
      return { start = now, prev = 0, cur = used, used = used, is_adjusted = true }
    end
    local shorter = window < quota.window and { window = window, code = 0 }
    return { start = start, prev = prev, cur = cur, used = used, now = now, is_adjusted = is_adjusted, shorter = shorter }
  end,

  commit = function(_, view, quota, spent)
    if view.shorter and spent > 0 then
      return write_window(quota, view.now, 0, view.used + spent)
    end
    return write_window(view.shorter or quota, view.start, view.prev, view.cur + spent)
  end,

  refund = function(_, view, quota, amount)
    local from_cur = at_most(amount, view.cur)
    local from_prev = at_most(amount - from_cur, view.prev)
    local prev, cur = view.prev - from_prev, view.cur - from_cur
    return write_window(view.shorter or quota, view.start, prev, cur), prev + cur
  end,

  -- Returns the time until the state counts nothing.
  life = function(view, quota, now, spent)
    if view.shorter and spent == 0 then
      return view.start + 2 * view.shorter.window - now
    elseif view.shorter then
      return 2 * quota.window
    end
    return view.start + 2 * quota.window - now
  end,

  -- Returns the latest time in the state, and the moment from which it counts nothing; 0 if it counts nothing.
  span = function(state)
    local windows = state.cur > 0 and 2 or state.prev > 0 and 1
    return state.start, windows and state.start + windows * state.window or 0
  end,
}

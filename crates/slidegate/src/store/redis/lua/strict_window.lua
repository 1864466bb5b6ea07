-- strict-window: the window, the newest time, and pairs of an age relative to that time and a count, the oldest first. Narrow
-- (tag 5): 6 bytes per pair. Wide (tag 6): 12 bytes per pair.

local function write_pairs(window, times, counts)
  local n = #times
  local newest, is_narrow = times[n] or 0, window < 4294967296
  for i = 1, n do
    is_narrow = is_narrow and counts[i] < 65536 and newest - times[i] < 4294967296
  end
  local tag, format = 6, '>I5I7'
  if is_narrow then
    tag, format = 5, '>I4I2'
  end
  local parts = { pack('>BI5I6B', tag, window, newest, n) }
  for i = 1, n do
    parts[i + 1] = pack(format, newest - times[i], counts[i])
  end
  return table.concat(parts)
end

-- Returns the left index of the two neighbours to merge. The core proves that a permitted merge exists. `total` is the larger
-- of the limit and the count, and `window` includes the clock's grain.
local function cheapest_merge(quota, window, total, times, counts)
  local most_count = math.ceil(total * 4 / quota.option)
  local best
  for left = 2, #times - 1 do
    local span = times[left + 1] - times[left - 1]
    if span * quota.option <= 4 * window and counts[left] + counts[left + 1] <= most_count then
      local delay = times[left + 1] - times[left]
      if not best or is_product_less(counts[left], delay, counts[best], times[best + 1] - times[best]) then
        best = left
      end
    end
  end
  return best or #times - 1
end

local function live_pairs(state, view)
  local times, counts = {}, {}
  if view.is_rebased then
    return { view.stamp }, { view.used }
  end
  for i = view.expired + 1, #state.times do
    times[#times + 1], counts[#counts + 1] = state.times[i], state.counts[i]
  end
  return times, counts
end

local strict_window = {
  read = function(record, at, tag)
    local window, newest, n, after = unpack('>I5I6B', record, at + 1)
    local format, times, counts = '>I5I7', {}, {}
    if tag == 5 then
      format = '>I4I2'
    end
    for i = 1, n do
      local older
      older, counts[i], after = unpack(format, record, after)
      times[i] = newest - older
    end
    return { window = window, times = times, counts = counts }, after
  end,

  empty = function(quota)
    return { window = quota.window, times = {}, counts = {} }
  end,

  view = function(state, quota, now, grain)
    local n, used, expired = #state.times, 0, 0
    local stamp, is_rebased
    now, stamp, is_rebased = passed(now, grain, state.times[n] or 0, quota.window)
    for i = 1, n do
      if not is_rebased and state.times[i] + quota.window <= now then
        expired = i
      else
        used = used + state.counts[i]
      end
    end
    local is_adjusted = is_rebased or (used > 0 and state.window ~= quota.window)
    return {
      stamp = stamp, grain = grain, expired = expired, used = used, is_rebased = is_rebased, is_adjusted = is_adjusted,
    }
  end,

  commit = function(state, view, quota, spent)
    local times, counts = live_pairs(state, view)
    local n = #times
    if spent > 0 and times[n] == view.stamp then
      counts[n] = counts[n] + spent
    elseif spent > 0 then
      times[n + 1], counts[n + 1] = view.stamp, spent
    end
    local total = at_least(view.used + spent, quota.limit)
    -- Only added units need merges: fewer slots of a changed policy keep the pairs as they are.
    while spent > 0 and #times > quota.option do
      local left = cheapest_merge(quota, quota.window + view.grain, total, times, counts)
      counts[left + 1] = counts[left] + counts[left + 1]
      table.remove(times, left)
      table.remove(counts, left)
    end
    return write_pairs(quota.window, times, counts)
  end,

  refund = function(state, view, quota, amount)
    local times, counts = live_pairs(state, view)
    while times[1] and amount >= counts[1] do
      amount = amount - table.remove(counts, 1)
      table.remove(times, 1)
    end
    if times[1] then
      counts[1] = counts[1] - amount
    end
    return write_pairs(quota.window, times, counts), #times
  end,

  life = function(view, quota, now)
    return view.stamp + quota.window - now
  end,

  span = function(state)
    local newest = state.times[#state.times]
    return newest or 0, newest and newest + state.window or 0
  end,
}

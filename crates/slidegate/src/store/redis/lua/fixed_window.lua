-- fixed-window (tag 3): start and length of the window, and its count.

local function write_fixed(start, window, cur)
  return pack('>BI6I5I7', 3, start, window, cur)
end

local fixed_window = {
  read = function(record, at)
    local start, window, cur, after = unpack('>I6I5I7', record, at + 1)
    return { start = start, window = window, cur = cur }, after
  end,

  empty = function(quota)
    return { start = 0, window = quota.window, cur = 0 }
  end,

  view = function(state, quota, now)
    if state.cur == 0 or now - state.start >= state.window then
      return { start = window_start(quota, quota.window, now), used = 0 }
    elseif state.window > quota.window then
      return { start = now, used = state.cur, is_adjusted = true }
    end
    -- Units of a shorter window move to this one with the next spent unit, as in a sliding window.
    local view = { start = state.start, used = state.cur, now = now }
    view.shorter = state.window < quota.window and state.window
    if state.start - now > state.window then
      view.start, view.is_adjusted = window_start(quota, state.window, now), true
    end
    return view
  end,

  commit = function(_, view, quota, spent)
    if view.shorter and spent > 0 then
      return write_fixed(view.now, quota.window, view.used + spent)
    end
    return write_fixed(view.start, view.shorter or quota.window, view.used + spent)
  end,

  refund = function(_, view, quota, amount)
    local cur = at_least(view.used - amount, 0)
    return write_fixed(view.start, view.shorter or quota.window, cur), cur
  end,

  life = function(view, quota, now, spent)
    if view.shorter and spent > 0 then
      return quota.window
    end
    return view.start + (view.shorter or quota.window) - now
  end,

  span = function(state)
    return state.start, state.cur > 0 and state.start + state.window or 0
  end,
}

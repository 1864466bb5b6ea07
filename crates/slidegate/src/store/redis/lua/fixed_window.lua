-- fixed-window (tag 3): when the window began, its length and what was counted in it.

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
    elseif state.window ~= quota.window then
      return { start = now, used = state.cur, is_mended = true }
    elseif state.start - now > state.window then
      return { start = window_start(quota, state.window, now), used = state.cur, is_mended = true }
    end
    return { start = state.start, used = state.cur }
  end,

  commit = function(_, view, quota, spent)
    return write_fixed(view.start, quota.window, view.used + spent)
  end,

  refund = function(_, view, quota, amount)
    local cur = at_least(view.used - amount, 0)
    return write_fixed(view.start, quota.window, cur), cur
  end,

  life = function(view, quota, now)
    return view.start + quota.window - now
  end,

  left = function(state, now)
    return state.cur > 0 and state.start + state.window - now or 0
  end,
}

-- token-bucket (tag 4): the time of the last write, the window, the limit, the capacity, and the debt as whole tokens and a
-- rest in units of 1/window token, so that the product debt = tokens·window + rest is never computed.

local function write_bucket(at, quota, tokens, rest)
  return pack('>BI6I5I7I7I7I5', 4, at, quota.window, quota.limit, quota.capacity, tokens, rest)
end

-- Returns the tokens that a window pays off. Under a limit of 0, which only charges exceed, the rate is that of a limit of 1.
local function rate(quota)
  return at_least(quota.limit, 1)
end

-- Returns the debt after `elapsed` milliseconds.
local function pay_off(quota, tokens, rest, elapsed)
  local window, limit = quota.window, rate(quota)
  local beyond = elapsed % window
  -- The product is rounded only from 2^53 on, which exceeds any debt.
  local paid = (elapsed - beyond) / window * limit
  if paid > tokens then
    return 0, 0
  end
  local paid_tokens, paid_rest = mul_div(limit, beyond, window)
  tokens, rest = tokens - paid - paid_tokens, rest - paid_rest
  if rest < 0 then
    tokens, rest = tokens - 1, rest + window
  end
  if tokens < 0 then
    return 0, 0
  end
  return tokens, rest
end

-- Returns the moment at which the debt is paid off, or a later one: the debt is below 2^84, and a double is precise to 2^-52.
local function paid_off(at, quota, tokens, rest)
  return at + math.ceil((tokens * quota.window + rest) / rate(quota) * (1 + 2 ^ -50))
end

local token_bucket = {
  read = function(record, at)
    local written, window, limit, capacity, tokens, rest, after = unpack('>I6I5I7I7I7I5', record, at + 1)
    return { at = written, window = window, limit = limit, capacity = capacity, tokens = tokens, rest = rest }, after
  end,

  empty = function(quota)
    return { at = 0, window = quota.window, limit = quota.limit, capacity = quota.capacity, tokens = 0, rest = 0 }
  end,

  -- A debt is paid off up to now at the rate of the quota that wrote it. Under another quota it is then capped at that
  -- quota's capacity.
  view = function(state, quota, now)
    local tokens, rest, at, is_adjusted = state.tokens, state.rest, now, false
    local ahead = state.at - now
    if ahead > quota.window then
      is_adjusted = true
    elseif ahead > 0 then
      at = state.at
    else
      tokens, rest = pay_off(state, tokens, rest, -ahead)
    end
    if tokens == 0 and rest == 0 then
      return { at = now, tokens = 0, rest = 0, used = 0 }
    end
    if state.window ~= quota.window or state.limit ~= quota.limit or state.capacity ~= quota.capacity then
      is_adjusted = true
      rest = mul_div_ceil(quota.window, rest, state.window)
      if rest == quota.window then
        tokens, rest = tokens + 1, 0
      end
      if tokens >= quota.capacity then
        tokens, rest = quota.capacity, 0
      end
    end
    local used = tokens
    if rest > 0 then
      used = tokens + 1
    end
    return { at = at, tokens = tokens, rest = rest, used = used, is_adjusted = is_adjusted }
  end,

  -- Returns the view with tokens added, up to the capacity. A debt that already exceeds the capacity stays unchanged.
  fill = function(view, quota, spent)
    local tokens, rest = view.tokens + spent, view.rest
    if tokens >= quota.capacity and view.tokens < quota.capacity then
      tokens, rest = quota.capacity, 0
    elseif tokens >= quota.capacity then
      tokens = view.tokens
    end
    return { at = view.at, tokens = tokens, rest = rest }
  end,

  commit = function(_, view, quota, spent)
    return write_bucket(view.at, quota, view.tokens + spent, view.rest)
  end,

  refund = function(_, view, quota, amount)
    local tokens, rest = view.tokens - amount, view.rest
    if tokens < 0 then
      tokens, rest = 0, 0
    end
    return write_bucket(view.at, quota, tokens, rest), tokens + rest
  end,

  life = function(view, quota, now, spent)
    return paid_off(view.at, quota, view.tokens + spent, view.rest) - now
  end,

  span = function(state, now)
    local tokens, rest = state.tokens, state.rest
    if now > state.at then
      tokens, rest = pay_off(state, tokens, rest, now - state.at)
    end
    if tokens == 0 and rest == 0 then
      return state.at, 0
    end
    return state.at, paid_off(state.at, state, state.tokens, state.rest)
  end,
}

-- token-bucket (tag 4): when it was written, the window, the limit, the capacity, and the debt as whole tokens and a rest in
-- windowths of one, so that debt = tokens·window + rest never has to be multiplied out.

local function write_bucket(at, quota, tokens, rest)
  return pack('>BI6I5I7I7I7I5', 4, at, quota.window, quota.limit, quota.capacity, tokens, rest)
end

-- Tokens that a window pays off. Under a limit of 0 only charges are owed, and they are paid off as under a limit of 1.
local function rate(quota)
  return at_least(quota.limit, 1)
end

-- The debt after `elapsed` milliseconds.
local function pay_off(quota, tokens, rest, elapsed)
  local window, limit = quota.window, rate(quota)
  local beyond = elapsed % window
  -- Rounded only where it is 2^53 or more, and then all is paid off.
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

-- Not less than it takes to pay it off, though rounded: the debt is below 2^84 and a float holds it to one part in 2^52.
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

  -- A debt is paid off at the rate of the quota that it was written under, up to now, and is then at most the capacity of
  -- another quota.
  view = function(state, quota, now)
    local tokens, rest, at, is_mended = state.tokens, state.rest, now, false
    local ahead = state.at - now
    if ahead > quota.window then
      is_mended = true
    elseif ahead > 0 then
      at = state.at
    else
      tokens, rest = pay_off(state, tokens, rest, -ahead)
    end
    if tokens == 0 and rest == 0 then
      return { at = now, tokens = 0, rest = 0, used = 0 }
    end
    if state.window ~= quota.window or state.limit ~= quota.limit or state.capacity ~= quota.capacity then
      is_mended = true
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
    return { at = at, tokens = tokens, rest = rest, used = used, is_mended = is_mended }
  end,

  -- The view with tokens added, up to the capacity. A debt that exceeds the capacity already stays as it is.
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

-- Exact arithmetic on doubles. All numbers but products are integers below 2^53.

local floor, byte, char, sub = math.floor, string.byte, string.char, string.sub
local pack, unpack, spread = struct.pack, struct.unpack, unpack
local EXACT = 2 ^ 53
-- Largest count, as in the core.
local MAX_COUNT = 2 ^ 49
local CHECK, PEEK, REFUND, RESET, CHARGE, BLOCK = 1, 2, 3, 4, 5, 6

-- Returns floor(a·b / c) and the remainder, for b ≤ c < 2^35 and a < 2^50.
local function mul_div(a, b, c)
  local product = a * b
  -- Only products of at least 2^53 are rounded.
  if product < EXACT then
    local rest = product % c
    return (product - rest) / c, rest
  end
  -- a = k·c + rest, so that k·b is at most a. Then rest·b by long multiplication, twelve bits at a time.
  local rest = a % c
  local whole, quotient, remainder = (a - rest) / c * b, 0, 0
  for _, unit in ipairs({ 16777216, 4096, 1 }) do
    local partial = remainder * 4096 + rest * (floor(b / unit) % 4096)
    remainder = partial % c
    quotient = quotient * 4096 + (partial - remainder) / c
  end
  return whole + quotient, remainder
end

local function mul_div_ceil(a, b, c)
  local quotient, remainder = mul_div(a, b, c)
  if remainder > 0 then
    return quotient + 1
  end
  return quotient
end

-- Returns whether a·b < c·d, for a and c below 2^50, b and d below 2^35.
local function is_product_less(a, b, c, d)
  local left, right = a * b, c * d
  if left < EXACT or right < EXACT then
    return left < right
  end
  -- Two limbs of sixteen bits and the remaining high bits.
  local function limbs(x, y)
    local low = x % 65536 * y
    local middle = floor(x / 65536) % 65536 * y + floor(low / 65536)
    local high = floor(x / 4294967296) * y + floor(middle / 65536)
    return high, middle % 65536, low % 65536
  end
  local high_1, middle_1, low_1 = limbs(a, b)
  local high_2, middle_2, low_2 = limbs(c, d)
  if high_1 ~= high_2 then
    return high_1 < high_2
  elseif middle_1 ~= middle_2 then
    return middle_1 < middle_2
  end
  return low_1 < low_2
end

-- Returns the part of a charge that is counted.
local function chargeable(used, cost)
  return math.min(cost, math.max(MAX_COUNT - used, 0))
end

-- Returns the start of a new key's window.
local function window_start(quota, window, now)
  if quota.option == 1 then
    return now
  end
  return now - now % window
end

local function at_least(a, b)
  if a < b then
    return b
  end
  return a
end

-- Returns the time by which entries expire and the stamp of an admission. Neither is before the newest stamp, except if the
-- clock stepped back by more than a window, which is the third result.
local function passed(now, grain, newest, window)
  local known = newest - grain
  if known - now > window then
    return now, now + grain, true
  end
  return at_least(now, known), at_least(now + grain, newest), false
end

local function at_most(a, b)
  if a > b then
    return b
  end
  return a
end

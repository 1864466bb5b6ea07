-- A record is the state of every quota of a policy, one after the other. This is the core's `decide`, line by line.

local ALGORITHMS = { sliding_window, strict_window, sliding_log, fixed_window, token_bucket }
-- Which algorithm wrote a part, by its tag.
local BY_TAG = { 1, 1, 4, 5, 2, 2, 3 }
-- Of a kind that no algorithm wrote: what stands at this place is new.
local NOTHING = char(0)
local CHECK, PEEK, REFUND, RESET = 1, 2, 3, 4
-- So many parts that are nobody's now are kept, as in the core.
local MOST_LEFT = 16

local function read_op(bytes)
  local _, code, verb, cost, _, at = unpack('>BBBI7I6', bytes)
  -- The same to which nobody can listen.
  local is_told = verb < 5
  if not is_told then
    verb = ({ [5] = REFUND, [6] = RESET, [7] = CHECK })[verb]
  end
  local op = { verb = verb, cost = cost, quotas = {}, code = code, is_told = is_told }
  while at <= #bytes do
    local quota = {}
    quota.algorithm, quota.limit, quota.window, quota.capacity, quota.option, at = unpack('>BI7I5I7B', bytes, at)
    quota.code = code
    op.quotas[#op.quotas + 1] = quota
  end
  return op
end

local function read_record(record)
  local parts, at = {}, 1
  if byte(record) >= 48 then
    -- A digit. As a part of others it would be wide.
    local state = read_decimal(record)
    local bytes = pack('>BI6I5I7I7', 2, state.start, state.window, state.prev, state.cur)
    return { { algorithm = 1, state = state, bytes = bytes } }
  end
  while at <= #record do
    local tag = byte(record, at)
    local algorithm = BY_TAG[tag]
    if not algorithm then
      error('unknown tag ' .. tag)
    end
    local state, after = ALGORITHMS[algorithm].read(record, at, tag)
    parts[#parts + 1] = { algorithm = algorithm, state = state, bytes = sub(record, at, after - 1) }
    at = after
  end
  return parts
end

local function counts_window(part, quota)
  return part.algorithm == quota.algorithm and part.state.window == quota.window
end

-- Only buckets know a limit: a debt is paid off at its own rate.
local function counts(part, quota)
  return counts_window(part, quota) and (part.state.limit or quota.limit) == quota.limit
end

-- The parts for the quotas, as far as there are any: the same window counted by the same algorithm wherever it
-- stands, of buckets first those of the same rate, else the same algorithm at the same place. Those that are left. And
-- whether another part stands at some place than the one that was there, or it is counted by another window or paid off
-- at another rate.
local function adopt(parts, quotas)
  local taken, adopted, left, is_changed = {}, {}, {}, false
  for _, is_own in ipairs({ counts, counts_window }) do
    for place, quota in ipairs(quotas) do
      for i, part in ipairs(parts) do
        if not adopted[place] and not taken[i] and is_own(part, quota) then
          adopted[place], taken[i] = part, true
          is_changed = is_changed or i ~= place or not counts(part, quota)
        end
      end
    end
  end
  for place, quota in ipairs(quotas) do
    local part = parts[place]
    if not adopted[place] then
      is_changed = is_changed or part
      if part and not taken[place] and part.algorithm == quota.algorithm then
        adopted[place], taken[place] = part, true
      else
        adopted[place] = { algorithm = quota.algorithm, state = ALGORITHMS[quota.algorithm].empty(quota) }
      end
    end
  end
  for i, part in ipairs(parts) do
    if not taken[i] then
      left[#left + 1] = part
    end
  end
  return adopted, left, is_changed
end

-- Of those that are left, what counts something still: it is kept behind the others, as it is. And for how long, and
-- whether there was no room for some of it.
local function keep_left(left, op, now)
  local bytes, life, is_cut = {}, 1, false
  for _, part in ipairs(left) do
    local more = ALGORITHMS[part.algorithm].left(part.state, now)
    if more > 0 and #bytes == MOST_LEFT then
      is_cut = true
    elseif more > 0 then
      bytes[#bytes + 1] = part.bytes
      life = at_least(life, more)
    end
  end
  -- Nothing stands behind a number.
  for _, quota in ipairs(op.quotas) do
    quota.code = #bytes == 0 and op.code or 0
  end
  return table.concat(bytes), life, is_cut
end

-- What the decision was made from, for the caller to work out its numbers.
local function describe(parts, op, is_allowed)
  local bytes = {}
  for i, part in ipairs(parts) do
    local excerpt = ALGORITHMS[part.algorithm].excerpt
    if not part.bytes then
      bytes[i] = NOTHING
    elseif excerpt then
      bytes[i] = excerpt(part.state, part.view, op.quotas[i], op, is_allowed)
    else
      bytes[i] = part.bytes
    end
  end
  return table.concat(bytes)
end

-- What is to be kept, for how long, and whether something is not that still counts; nil if it would be too large.
local function commit(parts, left, op, spent, now)
  local behind, life, is_cut = keep_left(left, op, now)
  local bytes = {}
  for i, part in ipairs(parts) do
    local algorithm, quota = ALGORITHMS[part.algorithm], op.quotas[i]
    local part_bytes = part.bytes
    if spent > 0 or part.view.is_mended or not part_bytes then
      part_bytes = algorithm.commit(part.state, part.view, quota, spent)
    end
    if not part_bytes then
      return nil
    end
    bytes[i] = part_bytes
    life = at_least(life, algorithm.life(part.view, quota, now, spent))
  end
  return table.concat(bytes) .. behind, life, is_cut
end

local function refund(parts, left, op, now)
  local behind, life, is_cut = keep_left(left, op, now)
  local bytes, total = {}, #behind
  for i, part in ipairs(parts) do
    local algorithm, quota = ALGORITHMS[part.algorithm], op.quotas[i]
    local counted
    bytes[i], counted = algorithm.refund(part.state, part.view, quota, op.cost)
    total = total + counted
    life = at_least(life, algorithm.life(part.view, quota, now, 0))
  end
  return table.concat(bytes) .. behind, life, total, is_cut
end

local function set(key, record, life, slack)
  -- As text with all its digits: a number would be printed with seventeen of them, slowly.
  local kept = invoke('SET', key, record, 'PX', string.format('%.0f', at_most(life, 2 ^ 52) + slack))
  return kept.err
end

-- Lets everybody know that something is given back. Not one of them hears it before the script is over.
local function tell(key, op)
  if not op.is_told then
    return false
  end
  local told = invoke('PUBLISH', sub(key, 1, string.find(key, '{', 1, true) - 1) .. 'news', key)
  return type(told) == 'table' and told.err
end

-- Decides one operation. Returns whether it is allowed and what that was decided from, or nil and an error.
local function execute(key, raw, op, now, slack)
  if op.verb == RESET then
    local failed = tell(key, op)
    if failed then
      return nil, failed
    end
    if raw then
      local gone = invoke('DEL', key)
      if type(gone) == 'table' then
        return nil, gone.err
      end
    end
    return '1', false
  end
  local parts, left, is_changed = adopt(raw and read_record(raw) or {}, op.quotas)
  local is_allowed, is_mended = true, false
  for i, part in ipairs(parts) do
    local quota = op.quotas[i]
    part.view = ALGORITHMS[part.algorithm].view(part.state, quota, now)
    is_allowed = is_allowed and part.view.used + op.cost <= quota.capacity
    is_mended = is_mended or part.view.is_mended
  end
  local before = describe(parts, op, is_allowed)
  local failed
  if op.verb == REFUND then
    if not raw then
      return '1', false
    end
    local record, life, total, is_cut = refund(parts, left, op, now)
    failed = (op.cost > 0 or is_changed or is_cut) and tell(key, op)
    if failed then
      return nil, failed
    elseif total > 0 then
      failed = set(key, record, life, slack)
    else
      local gone = invoke('DEL', key)
      failed = type(gone) == 'table' and gone.err
    end
    is_allowed = true
  elseif op.verb == CHECK and (is_mended or (is_allowed and op.cost > 0)) then
    local record, life, is_cut = commit(parts, left, op, is_allowed and op.cost or 0, now)
    if not record then
      return nil, 'SLIDEGATEFULL a sliding log holds no more than 128 KiB'
    end
    -- By another limit than the one before, others may wait for less time than they were told.
    failed = (is_mended or is_changed or is_cut) and tell(key, op) or set(key, record, life, slack)
  end
  if failed then
    return nil, failed
  end
  return is_allowed and '1' or '0', before
end

return read_op, execute

-- Records, which consist of the states of a policy's quotas, and the core's `decide`, line by line.

local ALGORITHMS = { sliding_window, strict_window, sliding_log, fixed_window, token_bucket }
-- Algorithm of a part, by its tag.
local BY_TAG = { 1, 1, 4, 5, 2, 2, 3 }
-- Block, at the end of a record: the moment until which the key is denied.
local BLOCK_TAG, BLOCK_FORMAT = 8, '>BI6'
-- Placeholder for a new part, with a tag that no algorithm uses.
local NOTHING = char(0)
-- Result of a reset that removed anything.
local FOUND = char(1)
-- As in the core: the largest number of parts of other versions, and the longest block.
local MAX_LEFT, LONGEST_BLOCK = 16, 31622400000

-- Verb of each code. Operations that publish no invalidations have the highest bit of the code set.
local VERBS = { CHECK, PEEK, REFUND, RESET, CHARGE, BLOCK }

local function read_op(bytes)
  local _, code, verb_code, cost, _, at = unpack('>BBBI7I6', bytes)
  local is_published = verb_code < 128
  local verb = VERBS[verb_code % 128]
  local op = { verb = verb, cost = cost, quotas = {}, code = code, is_published = is_published }
  if verb == BLOCK then
    op.cost, op.block = 0, cost
  end
  while at <= #bytes do
    local quota = {}
    quota.algorithm, quota.limit, quota.window, quota.capacity, quota.option, at = unpack('>BI7I5I7B', bytes, at)
    quota.code = code
    op.quotas[#op.quotas + 1] = quota
  end
  return op
end

-- Returns the parts of a record, and the moment until which the key is blocked.
local function read_record(record)
  local parts, at, blocked = {}, 1, 0
  if (byte(record) or 0) >= 48 then
    -- A decimal record. As a part of a longer record it has the wide form.
    local state = read_decimal(record)
    local bytes = pack('>BI6I5I7I7', 2, state.start, state.window, state.prev, state.cur)
    return { { algorithm = 1, state = state, bytes = bytes } }, 0
  end
  while at <= #record do
    local tag, _ = byte(record, at)
    local algorithm = BY_TAG[tag]
    if tag == BLOCK_TAG then
      _, blocked, at = unpack(BLOCK_FORMAT, record, at)
    elseif algorithm then
      local state, after = ALGORITHMS[algorithm].read(record, at, tag)
      parts[#parts + 1] = { algorithm = algorithm, state = state, bytes = sub(record, at, after - 1) }
      at = after
    else
      error('unknown tag ' .. tag)
    end
  end
  return parts, blocked
end

-- Returns the end of the block; 0 if the key is not blocked now.
local function block_in_force(blocked, now)
  return blocked > now and blocked - now <= LONGEST_BLOCK and blocked or 0
end

local function span(part, now)
  return ALGORITHMS[part.algorithm].span(part.state, now)
end

-- Returns whether the part counts anything, and its time is not further ahead than a window.
local function is_live(part, now)
  local latest, ends = span(part, now)
  return ends > now and latest - now <= part.state.window
end

-- Returns whether the part was counted for this quota. Only token buckets contain limit and capacity.
local function is_of(part, quota)
  local state = part.state
  return part.algorithm == quota.algorithm and state.window == quota.window
    and (not state.limit or (state.limit == quota.limit and state.capacity == quota.capacity))
end

-- Returns the index of the part that a quota without a part of its own copies: of its algorithm, with a count, and of the
-- nearest window.
local function find_source(parts, is_used, quota, is_same_window, now)
  local best, nearest
  for i, part in ipairs(parts) do
    if not is_used[i] and part.algorithm == quota.algorithm then
      local distance = math.abs(part.state.window - quota.window)
      local is_nearer = (distance == 0 or not is_same_window) and (not nearest or distance < nearest)
      if is_nearer then
        local _, ends = span(part, now)
        if ends > now then
          best, nearest = i, distance
        end
      end
    end
  end
  return best
end

-- Returns the parts of the quotas: each quota's own at any index, else a copy of the nearest one, else an empty one. Also
-- returns the remaining parts, which include the sources of copies, and whether any index has another part than before.
local function adopt(parts, quotas, now)
  local is_taken, is_used, adopted, left, is_changed = {}, {}, {}, {}, false
  for place, quota in ipairs(quotas) do
    for i, part in ipairs(parts) do
      if not adopted[place] and not is_taken[i] and is_of(part, quota) then
        adopted[place], is_taken[i], is_used[i] = part, true, true
        is_changed = is_changed or i ~= place
      end
    end
  end
  for _, is_same_window in ipairs({ true, false }) do
    for place, quota in ipairs(quotas) do
      local source = not adopted[place] and find_source(parts, is_used, quota, is_same_window, now)
      if source then
        local part = parts[source]
        adopted[place] = { algorithm = part.algorithm, state = part.state, bytes = part.bytes, source = part }
        is_used[source], is_changed = true, true
      end
    end
  end
  for place, quota in ipairs(quotas) do
    if not adopted[place] then
      adopted[place] = { algorithm = quota.algorithm, state = ALGORITHMS[quota.algorithm].empty(quota) }
      is_changed = is_changed or parts[place]
    end
  end
  for i, part in ipairs(parts) do
    if not is_taken[i] then
      left[#left + 1] = part
    end
  end
  return adopted, left, is_changed
end

-- Returns the sources that their copies replace, because a copy is unchanged or still has its source's shorter window.
local function moved_sources(parts, op, spent)
  local moved = {}
  for i, part in ipairs(parts) do
    local is_left = (op.verb == CHECK or op.verb == CHARGE) and not part.view.is_adjusted
    if part.source and spent[i] == 0 and (part.view.shorter or is_left) then
      moved[part.source] = true
    end
  end
  return moved
end

-- Returns the time for which a part that counts nothing is kept after its last write: two windows, by the longest window
-- among the parts of its algorithm; nil without another part.
local function dead_life(parts, left, op, dead)
  local longest
  for i, quota in ipairs(op.quotas) do
    if quota.algorithm == dead.algorithm then
      longest = at_least(longest or dead.state.window, at_least(quota.window, parts[i].state.window))
    end
  end
  for _, part in ipairs(left) do
    if part ~= dead and part.algorithm == dead.algorithm then
      longest = at_least(longest or dead.state.window, part.state.window)
    end
  end
  return longest and 2 * longest
end

-- Counts spent or refunded units in a part of another version of the policy, under the part's own quota. They increase the
-- debt of a token bucket up to its capacity. Returns the part and its remaining life.
local function count_elsewhere(part, op, now, cost)
  local algorithm, state = ALGORITHMS[part.algorithm], part.state
  local quota = { limit = state.limit or 0, window = state.window, capacity = state.capacity or 0, code = 0 }
  quota.option = algorithm == strict_window and 16 or 0
  local view = algorithm.view(state, quota, now, op.grain)
  local spent, bytes = 0, nil
  if op.verb == REFUND then
    bytes = view.used > 0 and algorithm.refund(state, view, quota, cost)
  elseif algorithm == token_bucket then
    view = algorithm.fill(view, quota, cost)
    bytes = algorithm.commit(state, view, quota, 0)
  else
    spent = chargeable(view.used, cost)
    bytes = spent > 0 and algorithm.commit(state, view, quota, spent)
  end
  if not bytes then
    return part.bytes, 0
  end
  return bytes, algorithm.life(view, quota, now, spent)
end

-- Returns the remaining parts that are kept, while they count units and for `dead_life` afterwards, the time for which they
-- count, and whether parts that count units were dropped because there are too many.
local function keep_left(parts, left, op, spent, now)
  local is_kept, live, life, is_cut, moved = {}, 0, 1, false, moved_sources(parts, op, spent)
  for i, part in ipairs(left) do
    local latest, ends = span(part, now)
    if not moved[part] and latest - now <= part.state.window and ends > now then
      is_kept[i] = live < MAX_LEFT
      is_cut = is_cut or not is_kept[i]
      live = live + 1
      life = is_kept[i] and at_least(life, ends - now) or life
    end
  end
  -- Parts that count units have precedence.
  for i, part in ipairs(left) do
    local latest, ends = span(part, now)
    local is_dead = not moved[part] and latest <= now + part.state.window and ends <= now
    local kept_ms = is_dead and live < MAX_LEFT and dead_life(parts, left, op, part)
    if kept_ms and latest + kept_ms > now then
      is_kept[i], live = true, live + 1
    end
  end
  local bytes, is_counted, is_spent = {}, {}, false
  for i, quota in ipairs(op.quotas) do
    is_counted[quota.algorithm], is_spent = true, is_spent or spent[i] > 0
  end
  local cost = (is_spent or op.verb == CHARGE or op.verb == REFUND) and op.cost or 0
  for i, part in ipairs(left) do
    if is_kept[i] then
      local part_bytes, part_life = part.bytes, 0
      if cost > 0 and is_counted[part.algorithm] then
        part_bytes, part_life = count_elsewhere(part, op, now, cost)
      end
      bytes[#bytes + 1] = part_bytes
      life = at_least(life, part_life)
    end
  end
  return table.concat(bytes), life, is_cut
end

-- Like `keep_left`, with the block appended.
local function behind(parts, left, op, spent, now, blocked)
  local bytes, life, is_cut = keep_left(parts, left, op, spent, now)
  if blocked > now then
    bytes = bytes .. pack(BLOCK_FORMAT, BLOCK_TAG, blocked)
    life = at_least(life, blocked - now)
  end
  -- The decimal form permits no further parts.
  for _, quota in ipairs(op.quotas) do
    quota.code = bytes == '' and op.code or 0
  end
  return bytes, life, is_cut
end

-- Returns the record that the decision is based on, from which the caller computes the numbers of the decision.
local function describe(parts, op, is_allowed, blocked)
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
  if blocked > 0 then
    bytes[#bytes + 1] = pack(BLOCK_FORMAT, BLOCK_TAG, blocked)
  end
  return table.concat(bytes)
end

-- View of an empty part.
local EMPTY_VIEW = { start = 0, prev = 0, cur = 0, used = 0, at = 0, tokens = 0, rest = 0 }

-- Returns the new record, its life, and whether parts that count units were dropped; nil if a part would be too large.
local function commit(parts, left, op, spent, now, blocked)
  local after, life, is_cut = behind(parts, left, op, spent, now, blocked)
  local bytes = {}
  for i, part in ipairs(parts) do
    local algorithm, quota = ALGORITHMS[part.algorithm], op.quotas[i]
    local part_bytes = part.bytes
    if spent[i] > 0 or part.view.is_adjusted then
      part_bytes = algorithm.commit(part.state, part.view, quota, spent[i])
    elseif not part_bytes and (algorithm == strict_window or algorithm == sliding_log) then
      part_bytes = algorithm.commit(part.state, part.view, quota, 0)
    elseif not part_bytes then
      part_bytes = algorithm.commit(part.state, EMPTY_VIEW, quota, 0)
    end
    if not part_bytes then
      return nil
    end
    bytes[i] = part_bytes
    life = at_least(life, algorithm.life(part.view, quota, now, spent[i]))
  end
  return table.concat(bytes) .. after, life, is_cut
end

local function refund(parts, left, op, now, blocked)
  local spent = {}
  for i = 1, #parts do
    spent[i] = 0
  end
  local after, life, is_cut = behind(parts, left, op, spent, now, blocked)
  local bytes, total = {}, #after
  for i, part in ipairs(parts) do
    local algorithm, quota = ALGORITHMS[part.algorithm], op.quotas[i]
    local counted
    bytes[i], counted = algorithm.refund(part.state, part.view, quota, op.cost)
    total = total + counted
    life = at_least(life, algorithm.life(part.view, quota, now, 0))
  end
  return table.concat(bytes) .. after, life, total, is_cut
end

local function set(key, record, life, slack)
  -- As text: Redis would format a number with seventeen digits, slowly.
  local kept = invoke('SET', key, record, 'PX', string.format('%.0f', at_most(life, 2 ^ 52) + slack))
  return kept.err
end

-- Publishes the key's invalidation. Subscribers receive it once the script has ended.
local function publish_invalidation(key, op)
  if not op.is_published then
    return false
  end
  local sent = invoke('PUBLISH', sub(key, 1, string.find(key, '{', 1, true) - 1) .. 'news', key)
  return type(sent) == 'table' and sent.err
end

local function remove(key)
  local deleted = invoke('DEL', key)
  return type(deleted) == 'table' and deleted.err
end

local function reset(key, raw, op, now)
  local failed = publish_invalidation(key, op) or raw and remove(key)
  if failed then
    return nil, failed
  end
  local is_sound, parts, blocked = pcall(read_record, raw or '')
  local is_found = raw and (not is_sound or block_in_force(blocked, now) > 0)
  for _, part in ipairs(is_sound and parts or {}) do
    is_found = is_found or is_live(part, now)
  end
  return '1', is_found and FOUND
end

-- Executes a refund, or a block, which refunds nothing.
local function refund_or_block(key, parts, left, is_changed, op, now, slack, blocked)
  local record, life, total, is_cut = refund(parts, left, op, now, blocked)
  local failed = (op.cost > 0 or op.block or is_changed or is_cut) and publish_invalidation(key, op)
  if failed then
    return failed
  elseif total > 0 then
    return set(key, record, life, slack)
  end
  return remove(key)
end

-- Returns the units that each quota counts, and whether any counts some.
local function spending(parts, op, is_allowed)
  local spent, is_any = {}, false
  for i, part in ipairs(parts) do
    spent[i] = op.verb == CHARGE and chargeable(part.view.used, op.cost) or op.verb == CHECK and is_allowed and op.cost or 0
    is_any = is_any or spent[i] > 0
  end
  return spent, is_any
end

-- Executes one operation. Returns whether it is allowed, and the record that the decision is based on, or nil and an error.
local function execute(key, raw, op, now, grain, slack)
  if op.verb == RESET then
    return reset(key, raw, op, now)
  end
  local known, blocked = read_record(raw or '')
  local is_known = blocked > now
  for _, part in ipairs(known) do
    is_known = is_known or select(2, span(part, now)) > now
  end
  -- A record that counts nothing is equal to none, because it may have expired.
  known, blocked = is_known and known or {}, block_in_force(blocked, now)
  local parts, left, is_changed = adopt(known, op.quotas, now)
  op.grain = grain
  local is_allowed, is_adjusted = true, false
  for i, part in ipairs(parts) do
    local quota = op.quotas[i]
    part.view = ALGORITHMS[part.algorithm].view(part.state, quota, now, grain)
    is_allowed = is_allowed and part.view.used + op.cost <= quota.capacity
    is_adjusted = is_adjusted or part.view.is_adjusted
  end
  local before = describe(parts, op, is_allowed, blocked)
  if op.verb == REFUND or op.verb == BLOCK then
    if not raw and op.verb == REFUND then
      return '1', false
    elseif op.block then
      blocked = op.block > 0 and now + at_most(op.block, LONGEST_BLOCK) or 0
    end
    local failed = refund_or_block(key, parts, left, is_changed, op, now, slack, blocked)
    if failed then
      return nil, failed
    end
    return '1', before
  end
  local spent, is_any = spending(parts, op, is_allowed)
  if is_any or (is_adjusted and op.verb ~= PEEK) then
    if blocked == 0 or op.verb == CHARGE then
      local record, life, is_cut = commit(parts, left, op, spent, now, blocked)
      if not record then
        return nil, 'SLIDEGATEFULL a sliding log holds no more than 128 KiB'
      end
      -- Another limit may shorten retry times that were returned before.
      local failed = (is_adjusted or is_changed or is_cut) and publish_invalidation(key, op) or set(key, record, life, slack)
      if failed then
        return nil, failed
      end
    end
  end
  return is_allowed and blocked == 0 and '1' or '0', before
end

return read_op, execute

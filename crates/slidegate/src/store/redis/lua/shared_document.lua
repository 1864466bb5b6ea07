-- Reads or writes the shared document in KEYS[1]: its version, a space, its text. ARGV[1]: the known version. ARGV[2]: the new
-- document; without it the script reads.
local current = redis.call('GET', KEYS[1])
local is_known = (current and string.match(current, '^%d+') or '0') == ARGV[1]
if not ARGV[2] then
  return not is_known and (current or '0 ')
end
if is_known then
  redis.call('SET', KEYS[1], ARGV[2])
end
return is_known and 1 or 0

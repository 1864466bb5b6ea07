-- KEYS[1]: the note, its version and its text with a space between. ARGV[1]: the version that is known. ARGV[2]: what to
-- put in its place, if anything.
local held = redis.call('GET', KEYS[1])
local is_known = (held and string.match(held, '^%d+') or '0') == ARGV[1]
if not ARGV[2] then
  return not is_known and (held or '0 ')
end
if is_known then
  redis.call('SET', KEYS[1], ARGV[2])
end
return is_known and 1 or 0

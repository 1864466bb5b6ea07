-- Deletes KEYS. ARGV: the channel of invalidations, and the message, which subscribers receive once the script has ended.
redis.call('PUBLISH', ARGV[1], ARGV[2])
return redis.call('DEL', unpack(KEYS))

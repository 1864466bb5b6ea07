-- Forgets KEYS. ARGV: the channel of news, and what to say there, which is heard when the script is over.
redis.call('PUBLISH', ARGV[1], ARGV[2])
return redis.call('DEL', unpack(KEYS))

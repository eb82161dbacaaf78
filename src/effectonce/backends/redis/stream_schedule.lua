-- Publish a message with a delay: it waits in a sorted set, from which stream_maintain.lua moves it to the stream.
--
-- KEYS  1 the set of such messages
-- ARGV  1 the delay in ms    2 random bytes, since two messages may have the same fields    3… the fields of the entry

local time = redis.call('TIME')
local due = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
local fields = {}
for n = 3, #ARGV do
  fields[n - 2] = ARGV[n]
end
return redis.call('ZADD', KEYS[1], due, cmsgpack.pack({ ARGV[2], fields }))

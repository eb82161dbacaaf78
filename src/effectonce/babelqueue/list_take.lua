-- Take messages from a queue of BabelQueue. Each moves from the head of the queue to the list of messages that are being
-- processed, and gets a deadline. Before that, delayed messages that are due, and messages whose deadline has passed, go
-- to the end of the queue. (BabelQueue itself has no delayed messages: they are ours.)
--
-- KEYS  1 the queue    2 the messages that are being processed    3 their deadlines: a ZSET of '<token>:<value>', in s
--       4 delayed messages: a ZSET of '<token>:<value>'
-- ARGV  1 the ack window in seconds    2 how many    3 random bytes, from which each reservation gets its token
--
-- Returns {token, value} for each. A token has 32 hexadecimal digits.

local queue, processing, deadlines, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

for _, member in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, 100)) do
  redis.call('RPUSH', queue, string.sub(member, 34))
  redis.call('ZREM', delayed, member)
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, 100)) do
  local value = string.sub(member, 34)
  if #member >= 33 and string.sub(member, 33, 33) == ':' and redis.call('LREM', processing, 1, value) == 1 then
    redis.call('RPUSH', queue, value)
  end
  redis.call('ZREM', deadlines, member)
end

local taken = {}
for n = 1, tonumber(ARGV[2]) do
  local value = redis.call('LMOVE', queue, processing, 'LEFT', 'RIGHT')
  if not value then break end
  local token = string.sub(redis.sha1hex(ARGV[3] .. n), 1, 32)
  redis.call('ZADD', deadlines, now + ARGV[1], token .. ':' .. value)
  taken[n] = { token, value }
end
return taken

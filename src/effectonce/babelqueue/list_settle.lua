-- Settle or extend reservations. Each must still be among the deadlines under its token: then it is this consumer's.
--
-- KEYS  1 the messages that are being processed    2 their deadlines    3 the target: a list, or the ZSET of delayed ones
-- ARGV  1 the verb    2 its argument    3… token, value and new value of each
--
--   ack               remove it
--   push              push its new value to the target list
--   delay   seconds   add its new value to the delayed messages
--   extend  seconds   set its deadline, from now
--
-- Returns 1 or 0 for each.

local processing, deadlines, target = KEYS[1], KEYS[2], KEYS[3]
local verb, argument = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

local function settle(token, value, new)
  local member = token .. ':' .. value
  if not redis.call('ZSCORE', deadlines, member) then return 0 end
  if verb == 'extend' then
    redis.call('ZADD', deadlines, now + argument, member)
    return 1
  end
  if verb == 'push' then
    redis.call('RPUSH', target, new)
  elseif verb == 'delay' then
    redis.call('ZADD', target, now + argument, token .. ':' .. new)
  end
  redis.call('ZREM', deadlines, member)
  redis.call('LREM', processing, 1, value)
  return 1
end

local answers = {}
for n = 3, #ARGV, 3 do
  answers[#answers + 1] = settle(ARGV[n], ARGV[n + 1], ARGV[n + 2])
end
return answers

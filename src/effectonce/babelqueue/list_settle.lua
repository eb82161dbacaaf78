-- What a consumer says about its reservations, each on the condition that it is still its own.
--
-- KEYS  1 what is being processed    2 its deadlines    3 where it goes: a list, or the ZSET of delayed messages
-- ARGV  1 what to do    2 its argument    3… token, value and new value of each
--
--   ack               done with it
--   push              to the end of the list, as its new value
--   delay   seconds   to the delayed messages, as its new value
--   extend  seconds   another deadline, from now
--
-- Answers 1 or 0 for each.

local processing, deadlines, target = KEYS[1], KEYS[2], KEYS[3]
local what, argument = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

local function settle(token, value, new)
  local member = token .. ':' .. value
  if not redis.call('ZSCORE', deadlines, member) then return 0 end
  if what == 'extend' then
    redis.call('ZADD', deadlines, now + argument, member)
    return 1
  end
  if what == 'push' then
    redis.call('RPUSH', target, new)
  elseif what == 'delay' then
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

-- Settle or extend deliveries of a stream, each on the condition that it is still pending under the consumer's name.
--
-- KEYS  1 the stream   2 the delayed messages of the group (a ZSET by due time)   3 its dead letters (a stream)
-- ARGV  1 the group    2 the consumer    3 the verb    4 its argument    5… the ids of the entries
--
--   ack               remove it from the pending entries
--   nack   delay      deliver it again after so many milliseconds
--   dead   headers    move it to the dead letters, with these headers
--   extend idle       set the time that it has been idle, in milliseconds
--   leave             nack, without a delay, all entries that are pending under the consumer's name, also those that it
--                     does not know (a reply may have been lost), and delete the consumer from the group; takes no ids
--
-- Returns 1 or 0 for each id. A message is added to its new place before it is acked in the old one, and an error ends
-- the script: a message that is half moved is in both places, never in none.

local stream, delayed, dead = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, verb, argument = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The fields of an entry with some of them changed; new ones come last.
local function with_fields(fields, changes)
  local result = {}
  for n = 1, #fields, 2 do
    local name = fields[n]
    result[n], result[n + 1] = name, changes[name] or fields[n + 1]
    changes[name] = nil
  end
  for name, value in pairs(changes) do
    result[#result + 1], result[#result + 2] = name, value
  end
  return result
end

local function value_of(fields, name)
  for n = 1, #fields, 2 do
    if fields[n] == name then return fields[n + 1] end
  end
end

-- Attempts are those counted before the entry was added, plus those that its group has counted since.
local function redeliver(id, fields, deliveries)
  local attempts = (tonumber(value_of(fields, 'attempts') or '0') or 0) + deliveries
  local copy = with_fields(fields, { group = group, attempts = string.format('%d', attempts) })
  if tonumber(argument) > 0 then
    redis.call('ZADD', delayed, now() + argument, cmsgpack.pack({ id, copy }))
  else
    redis.call('XADD', stream, '*', unpack(copy))
  end
end

local function settle(id)
  local pending = redis.call('XPENDING', stream, group, id, id, 1, consumer)
  if #pending == 0 then return 0 end
  if verb == 'extend' then
    redis.call('XCLAIM', stream, group, consumer, 0, id, 'IDLE', argument, 'JUSTID')
    return 1
  end
  if verb ~= 'ack' then
    local entry = redis.call('XRANGE', stream, id, id)[1]
    if entry and verb == 'nack' then
      redeliver(id, entry[2], pending[1][4])
    elseif entry then
      redis.call('XADD', dead, '*', unpack(with_fields(entry[2], { headers = argument })))
    end
  end
  return redis.call('XACK', stream, group, id)
end

-- Entries beyond the limit of 10000 stay pending, and another consumer takes them over when they time out.
if verb == 'leave' then
  verb, argument = 'nack', '0'
  for _, pending in ipairs(redis.call('XPENDING', stream, group, '-', '+', 10000, consumer)) do
    settle(pending[1])
  end
  if #redis.call('XPENDING', stream, group, '-', '+', 1, consumer) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
  end
end

local answers = {}
for n = 5, #ARGV do
  answers[n - 4] = settle(ARGV[n])
end
return answers

-- Maintain a stream. Every consumer runs this a few times in each ack window: it moves delayed messages that are due
-- back to the stream, takes over deliveries of dead consumers, and trims entries that every group has settled.
--
-- KEYS  1 the stream   2 the delayed messages of the group   3 those that were published with a delay, for all groups
-- ARGV  1 the group    2 the consumer    3 the ack window in ms    4 the most entries to take over
--       5 the cursor of XAUTOCLAIM    6 the most delayed messages to move
--       7 consumers that have been silent for so many ms and hold nothing are deleted; 0: none
--
-- Returns {ms until the next delayed message is due, or -1; the next cursor; the entries taken over, each as
-- {id, fields, how often delivered}}.

local stream = KEYS[1]
local group, consumer, window, limit, cursor, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Delayed messages that are due, added before they are removed: see stream_settle.lua. A server that is out of memory
-- refuses XADD, and they wait; the script continues, since what consumers settle makes room.
local due = -1
for _, delayed in ipairs({ KEYS[2], KEYS[3] }) do
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, most)) do
    local added = redis.pcall('XADD', stream, '*', unpack(cmsgpack.unpack(member)[2]))
    if type(added) == 'table' and added.err then break end
    redis.call('ZREM', delayed, member)
  end
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  if first[2] and (due < 0 or first[2] - now < due) then due = math.max(first[2] - now, 0) end
end

-- Deliveries that were idle for a whole window. An entry that was deleted by hand is skipped.
local taken = {}
if limit > 0 then
  local claimed = redis.call('XAUTOCLAIM', stream, group, consumer, window, cursor, 'COUNT', limit)
  cursor = claimed[1]
  for _, entry in ipairs(claimed[2]) do
    if entry and entry[2] then
      local pending = redis.call('XPENDING', stream, group, entry[1], entry[1], 1)
      taken[#taken + 1] = { entry[1], entry[2], pending[1] and pending[1][4] or 1 }
    end
  end
end

-- Ids are '<ms>-<n>', without leading zeros: the longer number is the greater.
local function less(a, b)
  local a1, a2 = a:match('^(%d+)-(%d+)$')
  local b1, b2 = b:match('^(%d+)-(%d+)$')
  if a1 == b1 then a1, b1 = a2, b2 end
  if #a1 ~= #b1 then return #a1 < #b1 end
  return a1 < b1
end

-- The first id that some group has not settled: all before it is trimmed. A group that never read keeps everything.
local keep
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local info = {}
  for n = 1, #flat, 2 do info[flat[n]] = flat[n + 1] end
  local oldest = info['last-delivered-id']
  if info.pending > 0 then
    oldest = redis.call('XPENDING', stream, info.name)[2]
  else
    local ms, n = oldest:match('^(%d+)-(%d+)$')
    if #n < 15 then oldest = ms .. '-' .. string.format('%.0f', n + 1) end
  end
  if not keep or less(oldest, keep) then keep = oldest end
end
if keep then redis.call('XTRIM', stream, 'MINID', keep) end

-- Each consumer has a name of its own, and a killed one has not deleted its name.
local silent = tonumber(ARGV[7])
if silent > 0 then
  for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local info = {}
    for n = 1, #flat, 2 do info[flat[n]] = flat[n + 1] end
    if info.pending == 0 and info.idle > silent and info.name ~= consumer then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, info.name)
    end
  end
end

return { due, cursor, taken }

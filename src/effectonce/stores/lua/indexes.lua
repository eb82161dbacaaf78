-- effectonce on Redis: what spans records. Not on the hot path.
--
-- KEYS[i]  the key that item i is about: a bucket's index (eo:{<namespace>/<bucket>}:open) or the
--          namespace's meta hash (eo:{<namespace>}:meta); none for what is asked of a node
-- ARGV[i]  item i as JSON: [operation, …]
-- reply    one element per item, in order
--
-- The record's fields and the two indexes of a bucket are described in records.lua.

local HEADER = '<c1BddddI3I3' -- what the header of every state begins with
local call, format = redis.call, string.format
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local NOW = format('%.0f', now)
local OPERATIONS = {}

function OPERATIONS.now()
  return now
end

-- The format of the records in this namespace, written by whoever comes first.
function OPERATIONS.version(meta, version)
  call('HSETNX', meta, 'version', version)
  return call('HGET', meta, 'version')
end

function OPERATIONS.swept(meta)
  return call('HSET', meta, 'swept_at', NOW)
end

function OPERATIONS.swept_at(meta)
  return call('HGET', meta, 'swept_at')
end

local function prefix_of(index)
  return string.sub(index, 1, -5) -- without "open"
end

-- {claimed, in doubt, oldest in doubt, due for the sweeper} of a bucket.
function OPERATIONS.sizes(open)
  local doubt = prefix_of(open) .. 'doubt'
  local oldest = call('ZRANGE', doubt, 0, 0, 'WITHSCORES')
  return {
    call('ZCARD', open), call('ZCARD', doubt), oldest[2] or false, call('ZCOUNT', open, '-inf', NOW),
  }
end

-- One step through an index: {next cursor, digest, fields, digest, fields, …}. A member whose record is
-- gone (expired, or deleted by hand) is dropped from the index on the way.
function OPERATIONS.step(open, index, cursor, count, scope)
  local prefix = prefix_of(open)
  local found = call('ZSCAN', prefix .. index, cursor, 'COUNT', count)
  local reply = {found[1]}
  for i = 1, #found[2], 2 do
    local digest = found[2][i]
    local f = call('HMGET', prefix .. digest, 'h', 'S')
    if not f[1] then
      call('ZREM', prefix .. index, digest)
    else
      local _, _, _, _, _, expires = struct.unpack(HEADER, f[1])
      if (expires == 0 or expires > now) and (scope == '' or scope == f[2]) then
        reply[#reply + 1] = digest
        reply[#reply + 1] = call('HGETALL', prefix .. digest)
      end
    end
  end
  return reply
end

-- Up to `limit` due members of a bucket: {expired, lapsed into doubt, looked at}.
function OPERATIONS.sweep(open, limit)
  local prefix = prefix_of(open)
  local namespace = string.match(prefix, '^eo:{(.*)/%x%x}:$')
  local expired, lapsed = 0, 0
  local due = call('ZRANGEBYSCORE', open, '-inf', NOW, 'LIMIT', 0, limit)
  for _, digest in ipairs(due) do
    local key = prefix .. digest
    local f = call('HMGET', key, 'h', 'S', 'K')
    local state, flags, token, _, created, expires, attempts, generation, at, lease
    if f[1] then
      state, flags, token, _, created, expires, attempts, generation, at = struct.unpack(HEADER, f[1])
      if state == 'C' then
        lease, at = struct.unpack('<d', f[1], at)
      end
    end
    if not state or (expires > 0 and expires <= now) then
      call('DEL', key)
      call('ZREM', open, digest)
      expired = expired + 1
    elseif state ~= 'C' then
      call('ZREM', open, digest) -- not open any more: left behind by a hand or a restore
    elseif expires > 0 or lease > now then
      call('ZADD', open, format('%.0f', expires > 0 and expires or lease), digest) -- look again when it ends
    else
      local h = struct.pack(HEADER, 'I', flags % 2, token, now, created, 0, attempts, generation)
      call('HSET', key, 'h', h .. string.sub(f[1], at))
      call('PERSIST', key)
      call('ZREM', open, digest)
      call('ZADD', prefix .. 'doubt', NOW, digest)
      if flags >= 2 then
        redis.pcall('PUBLISH', 'eo:' .. namespace .. ':changes', #f[2] .. ':' .. f[2] .. f[3])
      end
      lapsed = lapsed + 1
    end
  end
  return {expired, lapsed, #due}
end

-- One step of SCAN over this node's records: {next cursor, {key, key, …}}.
function OPERATIONS.scan(_, cursor, pattern, count)
  return call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'hash')
end

-- The same, but counted: {next cursor, done, failed, free}.
function OPERATIONS.count(_, cursor, pattern, count)
  local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'hash')
  local counts = {D = 0, F = 0, R = 0}
  for _, key in ipairs(found[2]) do
    local h = redis.pcall('HGET', key, 'h') -- a key that moves to another node is not ours to count
    if type(h) == 'string' and #h >= struct.size(HEADER) then
      local state, _, _, _, _, expires = struct.unpack(HEADER, h)
      if counts[state] and expires > now then
        counts[state] = counts[state] + 1
      end
    end
  end
  return {found[1], counts.D, counts.F, counts.R}
end

local replies = {}
for i = 1, #ARGV do
  local item = cjson.decode(ARGV[i])
  local ok, reply = pcall(OPERATIONS[item[1]], KEYS[i], unpack(item, 2))
  if not ok and type(reply) ~= 'table' then
    -- A Redis error by its code word, or Lua's own complaint about a field that is not what we wrote.
    reply = string.gsub(tostring(reply), '[\r\n]', ' ')
    reply = {err = string.match(reply, '^%-?(%u%u+ .*)') or string.match(reply, ': %-(%u%u+ .*)') or 'CORRUPT ' .. reply}
  end
  replies[i] = reply
end
return replies

-- effectonce on Redis: the operations that span records, off the hot path. Follows common.lua.
--
-- KEYS[i]  the key that item i is about: a bucket's index (eo:{<namespace>/<bucket>}:open) or the
--          namespace's meta hash (eo:{<namespace>}:meta); none for an operation on a whole node
-- ARGV[i]  item i as JSON: [operation, …], with up to six arguments
-- reply    one element per item, in order

local OPERATIONS = {}

function OPERATIONS.now()
  return now
end

-- The commands of both scripts; each takes a key as its first argument.
local COMMANDS = {
  'HSET', 'HDEL', 'HGET', 'HGETALL', 'HMGET', 'DEL', 'PEXPIREAT', 'PERSIST',
  'ZADD', 'ZREM', 'ZRANGE', 'ZRANGEBYSCORE', 'ZSCAN', 'ZCARD', 'ZCOUNT',
}

-- Refuses a user who may not run all of them in this namespace. Redis 6 cannot tell beforehand.
local function require_permission(meta)
  local key = string.gsub(meta, '}:meta$', '/00}:open')
  for _, command in ipairs(redis.acl_check_cmd and COMMANDS or {}) do
    if not redis.acl_check_cmd(command, key) then
      error('NOPERM this user may not run ' .. command .. ' on ' .. key, 0)
    end
  end
end

-- The format of the records in this namespace, written by the first client.
function OPERATIONS.version(meta, version)
  require_permission(meta)
  call('HSETNX', meta, 'version', version)
  return call('HGET', meta, 'version')
end

function OPERATIONS.swept(meta)
  return call('HSET', meta, 'swept_at', format('%.0f', now))
end

function OPERATIONS.swept_at(meta)
  return call('HGET', meta, 'swept_at')
end

local function prefix_of(index)
  return sub(index, 1, -5) -- without "open"
end

-- The text of a damaged record's error. Any other error is raised: it is not the record's.
local function damage_text(problem, key)
  local reply, damaged = failure(problem, key)
  if not damaged then
    error(problem, 0)
  end
  return reply.err
end

-- {in doubt, oldest in doubt, due for the sweeper} of a bucket.
function OPERATIONS.sizes(open)
  local doubt = prefix_of(open) .. 'doubt'
  local oldest = call('ZRANGE', doubt, 0, 0, 'WITHSCORES')
  return {call('ZCARD', doubt), oldest[2] or false, call('ZCOUNT', open, -now, now)}
end

-- The fields of a record in doubt; nil: it is not listed. A record that was deleted by hand, or that a restore has
-- taken out of doubt, is dropped from the index.
local function read_member(doubt, key, scope)
  if read(key) ~= 'I' then
    call('ZREM', doubt, sub(key, -32))
    return nil
  end
  return (scope == '' or scope == call('HGET', key, 'S')) and call('HGETALL', key) or nil
end

-- One step through what is in doubt: {next cursor, {error, …} for damaged records, digest, fields, digest, fields, …}.
function OPERATIONS.step(open, cursor, count, scope)
  local prefix, damaged = prefix_of(open), {}
  local page = call('ZSCAN', prefix .. 'doubt', cursor, 'COUNT', count)
  local reply = {page[1], damaged}
  for i = 1, #page[2], 2 do
    local digest = page[2][i]
    local ok, fields = pcall(read_member, prefix .. 'doubt', prefix .. digest, scope)
    if not ok then
      damaged[#damaged + 1] = damage_text(fields, prefix .. digest)
    elseif fields then
      reply[#reply + 1] = digest
      reply[#reply + 1] = fields
    end
  end
  return reply
end

-- For a list by the last change: up to `limit` members in doubt of a bucket, those whose score is the highest up to
-- `before`, and all whose score is `before`: {digest, score, digest, score, …}.
function OPERATIONS.newest_doubts(open, before, limit)
  local doubt = prefix_of(open) .. 'doubt'
  local last = call('ZCOUNT', doubt, '-inf', before)
  local first = math.max(0, last - limit - call('ZCOUNT', doubt, before, before))
  return last > 0 and call('ZRANGE', doubt, first, last - 1, 'WITHSCORES') or {}
end

-- Sweeps one due member. Returns what it adds to expired and to lapsed.
local function sweep_member(open, digest, key)
  local state, flags, token, _, created, lease, expires, attempts, generation, owner = read(key)
  if not state then
    call('DEL', key)
    call('ZREM', open, digest)
    return 1, 0
  elseif state ~= 'C' or expires > 0 then
    call('ZREM', open, digest) -- not to be watched: left by a manual change, a restore or an earlier release
  elseif lease > now then
    call('ZADD', open, -lease, digest) -- due again when the lease ends
  else
    return 0, to_doubt(key, flags, token, created, attempts, generation, owner)
  end
  return 0, 0
end

-- Up to `limit` due members of a bucket: {expired, lapsed into doubt, visited, {error, …} for damaged records}. A
-- damaged record is reported once: it is dropped from the index, and stays until it is deleted.
function OPERATIONS.sweep(open, limit)
  local prefix, expired, lapsed, damaged = prefix_of(open), 0, 0, {}
  local due = call('ZRANGEBYSCORE', open, -now, now, 'LIMIT', 0, limit)
  for _, digest in ipairs(due) do
    local ok, more_expired, more_lapsed = pcall(sweep_member, open, digest, prefix .. digest)
    if ok then
      expired, lapsed = expired + more_expired, lapsed + more_lapsed
    else
      damaged[#damaged + 1] = damage_text(more_expired, prefix .. digest)
      call('ZREM', open, digest)
    end
  end
  return {expired, lapsed, #due, damaged}
end

-- One step of SCAN over this node's records: {next cursor, {key, key, …}}, only those of one state where its letter is
-- given.
function OPERATIONS.scan(_, cursor, pattern, count, letter)
  local page = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'hash')
  if letter == '' then
    return page
  end
  local keys = {}
  for _, key in ipairs(page[2]) do
    local h = redis.pcall('HGET', key, 'h') -- the caller handles keys that cannot be read, or move to another node
    if type(h) ~= 'string' or #h < struct.size(CLOSED) or sub(h, 1, 1) == letter then
      keys[#keys + 1] = key
    end
  end
  return {page[1], keys}
end

local function has_key_with(key, scope, part)
  local names = redis.pcall('HMGET', key, 'S', 'K')
  return not names.err and (scope == '' or names[1] == scope) and names[2] and string.find(names[2], part, 1, true)
end

-- One step of SCAN for a list by the last change: {next cursor, key, changed, key, changed, …}, only records of one
-- state, of one scope and with a key that contains `part`, where they are given.
function OPERATIONS.newest(_, cursor, pattern, count, letter, scope, part)
  local page = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'hash')
  local reply = {page[1]}
  for _, key in ipairs(page[2]) do
    local h = redis.pcall('HGET', key, 'h') -- as in `count`
    if type(h) == 'string' and #h >= struct.size(CLOSED) then
      local state, _, _, changed, _, expires = unpack(CLOSED, h)
      local matches = (letter == '' or state == letter) and (expires == 0 or expires > now)
      if matches and ((scope == '' and part == '') or has_key_with(key, scope, part)) then
        reply[#reply + 1] = key
        reply[#reply + 1] = format('%.0f', changed)
      end
    end
  end
  return reply
end

-- One step of SCAN that counts: {next cursor, claimed, done, failed, free}.
function OPERATIONS.count(_, cursor, pattern, count)
  local page = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'hash')
  local counts = {C = 0, D = 0, F = 0, R = 0}
  for _, key in ipairs(page[2]) do
    local h = redis.pcall('HGET', key, 'h') -- a key that moves to another node is counted there
    if type(h) == 'string' and #h >= struct.size(CLOSED) then
      local state, _, _, _, _, expires = unpack(CLOSED, h)
      if counts[state] and (expires > now or expires == 0) then
        counts[state] = counts[state] + 1
      end
    end
  end
  return {page[1], counts.C, counts.D, counts.F, counts.R}
end

local replies = {}
for i = 1, #ARGV do
  local words = cjson.decode(ARGV[i])
  local ok, reply = pcall(OPERATIONS[words[1]], KEYS[i], words[2], words[3], words[4], words[5], words[6], words[7])
  if not ok then
    reply = failure(reply, KEYS[i])
  end
  replies[i] = reply
end
return replies

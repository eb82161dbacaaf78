-- effectonce on Redis: the beginning of both scripts; records.lua or indexes.lua follows it. It documents the format of
-- a record, which record_format.py reads and writes on the client's side.
--
-- A record is a hash, small enough to stay a listpack: eo:{<namespace>/<bucket>}:<32-byte SHA-256 of scope and key>
--   h  header, little-endian: state (1 letter: C claimed, D done, F failed, I in doubt, R free);
--      1 byte of flags (1: the end of this lease means in doubt, 2: it was taken from a lapsed lease,
--      4: a caller waits for the settlement);
--      as doubles, in microseconds since the epoch: token, changed, created, expires (0: never);
--      as 3 bytes each: attempts, generation; of a claim, as a double: lease until; then the owner: the 16
--      random bytes of the claim, empty once an operator has fenced it out. At most 64 bytes: a longer value
--      (hash-max-listpack-value) would turn the listpack into a hash table
--   S  scope   K  key   p  fingerprint   r  result   e  error      (p, r and e only if present)
--
-- Two sorted sets per bucket spare the sweeper and operators a SCAN; their members are digests:
--   eo:{<namespace>/<bucket>}:open    claims that lapse to in doubt; score: the end of the lease, negative. Other
--                                     claims are in no index: the next claim takes them over, or Redis removes them,
--                                     and an entry would cost half as much again as the record. (Earlier releases
--                                     put them here too, with the time they expire at, positive. The sweeper drops
--                                     those, so it reads from -now to now)
--   eo:{<namespace>/<bucket>}:doubt   records in doubt; score: since when
--
-- Redis removes expired records itself (PEXPIREAT, never before the header's time); the header decides before that.
-- A number that is an argument of redis.call is written with all its digits. Where Lua itself turns a number into text,
-- it writes 14 digits: use '%.0f' there.

local CLOSED = '<c1BddddI3I3'
local CLAIMED = '<c1BddddI3I3d'
local call, sub, format, pack, unpack = redis.call, string.sub, string.format, struct.pack, struct.unpack
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

-- Returns state, flags, token, changed, created, lease, expires, attempts, generation, owner. For an absent record: nil
-- and false; for one that has expired and that Redis has not removed yet: nil and true.
local function read(key)
  local h = call('HGET', key, 'h')
  if not h then
    return nil, false
  end
  local state, flags, token, changed, created, expires, attempts, generation, at = unpack(CLOSED, h)
  local lease = 0
  if state == 'C' then
    lease, at = unpack('<d', h, at)
  end
  if expires > 0 and expires <= now then
    return nil, true
  end
  return state, flags, token, changed, created, lease, expires, attempts, generation, sub(h, at)
end

-- Notifies the callers that wait for this record. It is only a hint: a refusal (ACL) must not undo the settlement.
local function notify_waiters(key)
  local names = call('HMGET', key, 'S', 'K')
  local namespace = string.match(sub(key, 1, -33), '^eo:{(.*)/%x%x}:$')
  redis.pcall('PUBLISH', 'eo:' .. namespace .. ':changes', #names[1] .. ':' .. names[1] .. names[2])
end

-- Moves a record to in doubt, where it stays until an operator decides. Owner and token stay too, so that the owner's
-- own `done` is still accepted.
local function to_doubt(key, flags, token, created, attempts, generation, owner)
  local prefix, digest = sub(key, 1, -33), sub(key, -32)
  call('HSET', key, 'h', pack(CLOSED, 'I', flags % 2, token, now, created, 0, attempts, generation) .. owner)
  call('PERSIST', key)
  call('ZREM', prefix .. 'open', digest)
  call('ZADD', prefix .. 'doubt', now, digest)
  if flags >= 4 then
    notify_waiters(key)
  end
  return 1
end

-- The error reply of an item that failed, and whether its record is the cause: Redis's error with its code word, or
-- CORRUPT with the key as redis-cli takes it, where a field or a key is not what we wrote.
local function failure(reply, key)
  local text = string.gsub(type(reply) == 'table' and reply.err or tostring(reply), '[\r\n]', ' ')
  text = string.match(text, '^%-?(%u%u+ .*)') or string.match(text, ': %-(%u%u+ .*)') or 'CORRUPT ' .. text
  local code, rest = string.match(text, '^(%u+) (.*)')
  if not key or (code ~= 'CORRUPT' and code ~= 'WRONGTYPE') then
    return {err = text}, false
  end
  local name = string.gsub(key, '[^%w{}:/_.%-]', function(byte) return format('\\x%02x', string.byte(byte)) end)
  return {err = 'CORRUPT "' .. name .. '" ' .. rest}, true
end

-- effectonce on Redis: what both scripts begin with. The record's format is known here and in records.lua, which
-- follows, or indexes.lua; on the other side it is known to stores/redis_format.py.
--
-- A record is a hash, small enough to stay a listpack: eo:{<namespace>/<bucket>}:<32-byte SHA-256 of scope and key>
--   h  header, little-endian: state (1 letter: C claimed, D done, F failed, I in doubt, R free);
--      1 byte of flags (1: the end of this lease means in doubt, 2: it was taken from a lapsed lease,
--      4: somebody waits for the settlement);
--      as doubles, in microseconds since the epoch: token, changed, created, expires (0: never);
--      as 3 bytes each: attempts, generation; of a claim, as a double: lease until; then the owner: the 16
--      random bytes of the claim, nothing once an operator has fenced it out. 64 bytes at most: more than
--      that (hash-max-listpack-value) would cost each record a hash table
--   S  scope   K  key   p  fingerprint   r  result   e  error      (all but S and K only where there is one)
--
-- Two sorted sets per bucket find without a SCAN what the sweeper and operators look for; their members are digests:
--   eo:{<namespace>/<bucket>}:open    claims the end of whose lease means in doubt; score: the end of the lease,
--                                     negative. Other claims are in no index: the next claim takes them over, or Redis
--                                     removes them, and an entry would cost half as much again as the record.
--                                     (Earlier releases put them here too, with the time they expire at, positive.
--                                     The sweeper drops those, so it has to look at -now to now)
--   eo:{<namespace>/<bucket>}:doubt   records in doubt; score: since when
--
-- Redis removes expired records itself (PEXPIREAT, never before the header's time); the header decides before that.
-- Numbers are given to Redis as they are: it writes all 17 digits; where Lua makes text of them it takes '%.0f'.

local CLOSED = '<c1BddddI3I3'
local CLAIMED = '<c1BddddI3I3d'
local call, sub, format, pack, unpack = redis.call, string.sub, string.format, struct.pack, struct.unpack
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

-- state (nil: absent or expired), flags, token, changed, created, lease, expires, attempts, generation, owner.
-- Where expired: nil, and true if Redis has not removed it yet.
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

-- Wake those who wait for this record. Only a hint: a refusal (ACL) must not undo the settlement.
local function wake(key)
  local names = call('HMGET', key, 'S', 'K')
  local namespace = string.match(sub(key, 1, -33), '^eo:{(.*)/%x%x}:$')
  redis.pcall('PUBLISH', 'eo:' .. namespace .. ':changes', #names[1] .. ':' .. names[1] .. names[2])
end

-- Kept until an operator decides; owner and token stay, so that the owner's own `done` is still taken.
local function to_doubt(key, flags, token, created, attempts, generation, owner)
  local prefix, digest = sub(key, 1, -33), sub(key, -32)
  call('HSET', key, 'h', pack(CLOSED, 'I', flags % 2, token, now, created, 0, attempts, generation) .. owner)
  call('PERSIST', key)
  call('ZREM', prefix .. 'open', digest)
  call('ZADD', prefix .. 'doubt', now, digest)
  if flags >= 4 then
    wake(key)
  end
  return 1
end

-- The reply of what failed, and whether the record is to blame: Redis's error by its code word, or CORRUPT, with
-- the key as redis-cli takes it, where a field or a key is not what we wrote.
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

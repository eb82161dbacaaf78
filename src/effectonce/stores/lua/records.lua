-- effectonce on Redis: every operation on one record, atomically, on this server's clock.
--
-- KEYS[i]  the record of item i: eo:{<namespace>/<bucket>}:<32-byte SHA-256 of scope and key>
--          (on a Cluster the two indexes of its bucket are named after it)
-- ARGV[i]  item i, packed by stores/redis_format.py; flags, owner, three numbers, four texts:
--          what they mean is said at each operation
-- reply    one element per item, in order; an item that fails answers an error and harms no other
--
-- A record is a hash, small enough to stay a listpack:
--   h  header, little-endian: state (1 letter: C claimed, D done, F failed, I in doubt, R free);
--      1 byte of flags (1: the end of this lease means in doubt, 2: somebody waits for the settlement);
--      as doubles, in microseconds since the epoch: token, changed, created, expires (0: never);
--      as 3 bytes each: attempts, generation; of a claim, as a double: lease until; then the owner: the 16
--      random bytes of the claim, nothing once an operator has fenced it out. 64 bytes at most: more than
--      that (hash-max-listpack-value) would cost each record a hash table
--   S  scope   K  key   p  fingerprint   r  result   e  error      (all but S and K only where there is one)
--
-- Two sorted sets per bucket find what is open without a SCAN; their members are digests:
--   eo:{<namespace>/<bucket>}:open    claimed records; score: when the sweeper has to look at it
--   eo:{<namespace>/<bucket>}:doubt   records in doubt; score: since when
--
-- Redis removes expired records itself (PEXPIREAT, rounded up to the millisecond); the header decides before
-- that. A hot script: Redis makes its functions anew for every call, so claim and settle come first, make no
-- tables, and everything else is made when it is needed (`rest`).

local CLOSED = '<c1BddddI3I3'
local CLAIMED = '<c1BddddI3I3d'
local call, sub, format, pack, unpack = redis.call, string.sub, string.format, struct.pack, struct.unpack
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local made, rest

-- state (nil: absent or expired), flags, token, changed, created, lease, expires, attempts, generation, owner,
-- fingerprint. Where expired: nil, and true if Redis has not removed it yet.
local function read(key)
  local found = call('HMGET', key, 'h', 'p')
  local h = found[1]
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
  return state, flags, token, changed, created, lease, expires, attempts, generation, sub(h, at), found[2]
end

-- PEXPIREAT, never before the header's time. (%.0f: Lua itself writes only 14 digits of a number.)
local function expire(key, at)
  call('PEXPIREAT', key, format('%.0f', math.ceil(at / 1000)))
end

-- To done, failed or free, expiring one retention from now; result and err are false where there is none.
local function close(key, was, state, flags, token, created, attempts, generation, owner, retention, result, err)
  local expires = now + retention
  local h = pack(CLOSED, state, flags % 2, token, now, created, expires, attempts, generation) .. owner
  if result then
    call('HSET', key, 'h', h, 'r', result)
  else
    call('HSET', key, 'h', h)
  end
  if err then
    call('HSET', key, 'e', err)
  end
  if was == 'C' then
    call('ZREM', sub(key, 1, -33) .. 'open', sub(key, -32))
  else -- only a claim has neither result nor error
    if not result then call('HDEL', key, 'r') end
    if not err then call('HDEL', key, 'e') end
    if was == 'I' then
      call('ZREM', sub(key, 1, -33) .. 'doubt', sub(key, -32))
    end
  end
  expire(key, expires)
  if flags >= 2 then
    made = made or rest()
    made.wake(key)
  end
  return 1
end

-- flags 1: a lapse means doubt, 2: waiting; limit: the attempts allowed, 0 for any
local function claim(key, flags, owner, lease, retention, limit, scope, name, prints)
  local doubt = flags % 2
  local ends = now + lease
  local expires = doubt == 1 and 0 or ends + retention
  local token, attempts, generation, lapsed = now, 1, 0, 0
  local state, old_flags, old_token, changed, created, old_lease, old_expires, old_attempts, old_generation,
    old_owner, print = read(key)
  if not state then
    if old_flags then
      call('DEL', key) -- what remains of an expired one
    end
    local h = pack(CLAIMED, 'C', doubt, now, now, now, expires, 1, 0, ends) .. owner
    if prints == '' then
      call('HSET', key, 'h', h, 'S', scope, 'K', name)
    else
      call('HSET', key, 'h', h, 'S', scope, 'K', name, 'p', sub(prints, 1, 33))
    end
  else
    made = made or rest()
    if state == 'C' and old_owner == owner and not made.mismatched(print, prints) then
      return {'claimed', old_token, old_attempts, old_generation, 0} -- its reply was lost
    end
    local answer = made.standing(
      key, prints, state, old_flags, old_token, old_lease, old_attempts, old_generation, print)
    if answer then
      if answer[1] == 'in_doubt' and state == 'C' then
        made.to_doubt(key, old_flags, old_token, created, old_attempts, old_generation, old_owner)
      elseif answer[1] == 'in_progress' and flags >= 2 and old_flags < 2 then
        call('HSET', key, 'h', pack(CLAIMED, 'C', old_flags + 2, old_token, changed, created, old_expires,
          old_attempts, old_generation, old_lease) .. old_owner)
      end
      return answer
    end
    if limit > 0 and old_attempts >= limit then
      local err = '1{"code":"attempts-exhausted"}'
      close(key, state, 'F', old_flags, old_token, created, old_attempts, old_generation, old_owner, retention,
        false, err)
      return {'failed', old_token, old_attempts, old_generation, err}
    end
    if state == 'C' then
      lapsed = 1
    else
      call('HDEL', key, 'r', 'e')
    end
    token, attempts, generation = math.max(old_token + 1, now), old_attempts + 1, old_generation
    flags = old_flags - old_flags % 2 + doubt -- whoever waited for the last owner waits for this one
    call('HSET', key, 'h',
      pack(CLAIMED, 'C', flags, token, now, created, expires, attempts, generation, ends) .. owner)
    if prints ~= '' then
      call('HSET', key, 'p', sub(prints, 1, 33))
    end
    if doubt == 1 then
      call('PERSIST', key)
    end
  end
  local due = ends
  if doubt == 0 then
    due = expires
    expire(key, expires)
  end
  call('ZADD', sub(key, 1, -33) .. 'open', format('%.0f', due), sub(key, -32))
  return {'claimed', token, attempts, generation, lapsed}
end

-- target 1 done, 2 failed, 3 in doubt, 4 free; options 1: refund the attempt, 2: has a result, 4: has an error
local function settle(key, options, owner, token, retention, target, _, _, result, err)
  target = target == 1 and 'D' or target == 2 and 'F' or target == 3 and 'I' or 'R'
  local state, flags, old_token, _, created, _, _, attempts, generation, old_owner = read(key)
  if not state or old_owner ~= owner or old_token ~= token then
    return 0
  end
  if state ~= 'C' and not (state == 'I' and target == 'D') then
    return state == target and 1 or 0 -- its reply was lost, or another word was spoken first
  end
  result, err = options % 4 >= 2 and result, options >= 4 and err
  attempts = attempts - options % 2
  if target ~= 'I' then
    return close(key, state, target, flags, token, created, attempts, generation, owner, retention, result, err)
  end
  if result then call('HSET', key, 'r', result) end
  if err then call('HSET', key, 'e', err) end
  made = made or rest()
  return made.to_doubt(key, flags, token, created, attempts, generation, owner)
end

function rest()
  local it = {}

  -- Wake those who wait for this record. Only a hint: a refusal (ACL) must not undo the settlement.
  function it.wake(key)
    local names = call('HMGET', key, 'S', 'K')
    local namespace = string.match(sub(key, 1, -33), '^eo:{(.*)/%x%x}:$')
    redis.pcall('PUBLISH', 'eo:' .. namespace .. ':changes', #names[1] .. ':' .. names[1] .. names[2])
  end

  -- Kept until an operator decides; owner and token stay, so that the owner's own `done` is still taken.
  function it.to_doubt(key, flags, token, created, attempts, generation, owner)
    local prefix, digest = sub(key, 1, -33), sub(key, -32)
    call('HSET', key, 'h', pack(CLOSED, 'I', flags % 2, token, now, created, 0, attempts, generation) .. owner)
    call('PERSIST', key)
    call('ZREM', prefix .. 'open', digest)
    call('ZADD', prefix .. 'doubt', format('%.0f', now), digest)
    if flags >= 2 then
      it.wake(key)
    end
    return 1
  end

  function it.mismatched(print, prints)
    if prints == '' or not print then
      return false
    end
    for at = 1, #prints, 33 do
      if sub(prints, at, at + 32) == print then
        return false
      end
    end
    return true
  end

  -- What an unexpired record answers to anyone but its owner; nil: it is there to be taken.
  function it.standing(key, prints, state, flags, token, lease, attempts, generation, print)
    if it.mismatched(print, prints) then
      return {'mismatch', 0, 0, 0, false}
    elseif state == 'D' then
      return {'done', token, attempts, generation, call('HGET', key, 'r')}
    elseif state == 'F' then
      return {'failed', token, attempts, generation, call('HGET', key, 'e')}
    elseif state == 'C' and now < lease then
      return {'in_progress', token, attempts, generation, lease - now}
    elseif state == 'I' or (state == 'C' and flags % 2 == 1) then
      return {'in_doubt', token, attempts, generation, false}
    elseif state ~= 'C' and state ~= 'R' then
      error('the state is not one of ours')
    end
    return nil
  end

  local function renew(key, _, owner, token, lease, retention)
    local state, flags, old_token, changed, created, _, _, attempts, generation, old_owner = read(key)
    if state ~= 'C' or old_owner ~= owner or old_token ~= token then
      return 0
    end
    local ends = now + lease
    local due, expires = ends, 0
    if flags % 2 == 0 then
      due, expires = ends + retention, ends + retention
      expire(key, expires)
    end
    call('HSET', key, 'h',
      pack(CLAIMED, 'C', flags, token, changed, created, expires, attempts, generation, ends) .. owner)
    call('ZADD', sub(key, 1, -33) .. 'open', format('%.0f', due), sub(key, -32))
    return 1
  end

  local function look(key, _, _, _, _, _, _, _, prints)
    local state, flags, token, _, _, lease, _, attempts, generation, _, print = read(key)
    return state and it.standing(key, prints, state, flags, token, lease, attempts, generation, print)
      or {'absent', 0, 0, 0, false}
  end

  -- options 2: has a result
  local function remember(key, options, _, _, retention, _, scope, name, result, prints)
    local token, made_at, attempts, generation = now, now, 0, 0
    local state, flags, old_token, _, created, lease, _, old_attempts, old_generation, _, print = read(key)
    if state then
      local answer = it.standing(key, prints, state, flags, old_token, lease, old_attempts, old_generation, print)
      if answer then
        return answer[1] == 'done' and 1 or 0
      end
      token, made_at, attempts, generation = math.max(old_token + 1, now), created, old_attempts, old_generation
      call('ZREM', sub(key, 1, -33) .. 'open', sub(key, -32))
      if flags >= 2 then
        it.wake(key)
      end
    end
    call('DEL', key)
    local h = pack(CLOSED, 'D', 0, token, now, made_at, now + retention, attempts, generation)
    call('HSET', key, 'h', h, 'S', scope, 'K', name)
    if prints ~= '' then call('HSET', key, 'p', sub(prints, 1, 33)) end
    if options >= 2 then call('HSET', key, 'r', result) end
    expire(key, now + retention)
    return 1
  end

  -- An operator's hand: the owner is fenced out; free starts a new generation with no attempts.
  local function take_over(key, target, retention, result, err)
    local state, flags, token, _, created, _, _, attempts, generation = read(key)
    token = math.max(token + 1, now)
    if target == 'R' then
      attempts, generation = 0, generation + 1
    end
    return close(key, state, target, flags, token, created, attempts, generation, '', retention, result, err)
  end

  local function forget(key, _, _, _, retention)
    if not read(key) then
      return 0
    end
    call('HDEL', key, 'p') -- the next claim may bring another payload
    return take_over(key, 'R', retention, false, false)
  end

  -- target and options as in settle
  local function resolve(key, options, _, _, retention, target, _, _, result, err)
    local state, flags, _, _, _, lease = read(key)
    if not (state == 'I' or (state == 'C' and flags % 2 == 1 and lease <= now)) then
      return 0
    end
    target = target == 1 and 'D' or target == 2 and 'F' or 'R'
    return take_over(key, target, retention, options % 4 >= 2 and result, options >= 4 and err)
  end

  -- The fields as a flat list; false: absent, or not of this state (its letter) or this scope, where given.
  local function get(key, _, _, _, _, _, _, _, letter, scope)
    local state = read(key)
    if not state or (letter ~= '' and letter ~= state) or (scope ~= '' and scope ~= call('HGET', key, 'S')) then
      return false
    end
    return call('HGETALL', key)
  end

  it[3], it[4], it[5], it[6], it[7], it[8] = renew, look, remember, forget, resolve, get
  return it
end

local replies = {}
for i = 1, #ARGV do
  local arg = ARGV[i]
  local op, flags, owner, x, y, z, scope, name, body, note, at = unpack('<BBBdddI4I4I4I4', arg)
  local run = op == 1 and claim or op == 2 and settle
  if not run then
    made = made or rest()
    run = made[op]
  end
  local a = at + owner
  local b = a + scope
  local c = b + name
  local d = c + body
  local ok, reply = pcall(run, KEYS[i], flags, sub(arg, at, a - 1), x, y, z, sub(arg, a, b - 1), sub(arg, b, c - 1),
    sub(arg, c, d - 1), sub(arg, d, d + note - 1))
  if not ok and type(reply) ~= 'table' then
    -- A Redis error by its code word, or Lua's own complaint about a field that is not what we wrote.
    reply = string.gsub(tostring(reply), '[\r\n]', ' ')
    reply = {err = string.match(reply, '^%-?(%u%u+ .*)') or string.match(reply, ': %-(%u%u+ .*)') or 'CORRUPT ' .. reply}
  end
  replies[i] = reply
end
return replies

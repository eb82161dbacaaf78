-- effectonce on Redis: every operation on one record, atomically, on this server's clock. Follows common.lua.
--
-- KEYS[i]  the record of item i (on a Cluster the two indexes of its bucket are named after it)
-- ARGV[i]  item i, packed by record_format.py: flags, owner, three numbers, four texts, whose meaning stands at each
--          operation
-- reply    one element per item, in order; an item that fails answers an error and harms no other
--
-- A hot script: Redis runs all of it for every call, and so creates its functions each time. Therefore claim and settle
-- come first and need no tables, and the other operations are created only when one is needed (`create_rare`).

local SLACK = 60000000 -- how much longer than its header says Redis may keep a record
local ceil = math.ceil
local rare, create_rare -- the operations that are not hot
-- The header and the expiry of the last new claim in this batch: the next one's are often the same.
local new, new_doubt, new_lease, new_retention, new_expires

-- Adds a claim that lapses to in doubt to the index that the sweeper reads.
local function index_open_claim(key, ends)
  call('ZADD', sub(key, 1, -33) .. 'open', -ends, sub(key, -32))
end

local function expire(key, at)
  call('PEXPIREAT', key, ceil(at / 1000))
end

-- Moves a record to done, failed or free, to expire one retention from now. `ttl`: when it expired until now (0:
-- never); result and err are false where there is none.
local function close(
  key, was, state, flags, token, created, ttl, attempts, generation, owner, retention, result, err)
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
    if flags % 2 == 1 then
      call('ZREM', sub(key, 1, -33) .. 'open', sub(key, -32))
    end
    if not err and attempts ~= 1 then call('HDEL', key, 'e') end -- of an attempt before
  else -- only a claim has no result
    if not result then call('HDEL', key, 'r') end
    if not err then call('HDEL', key, 'e') end
    if was == 'I' then
      call('ZREM', sub(key, 1, -33) .. 'doubt', sub(key, -32))
    end
  end
  if flags >= 4 then
    notify_waiters(key)
  end
  if ttl < expires or ttl > expires + SLACK then -- a claim's own is later than this by what is left of the lease
    expire(key, expires) -- last, since a time that has passed deletes it at once
  end
  return 1
end

-- Claims a record. flags 1: a lapse means doubt, 2: the caller waits; limit: the attempts allowed, 0 for any
-- reply: of a new record its token alone, which says: first attempt, generation 0
local function claim(key, flags, owner, lease, retention, limit, scope, name, prints)
  local doubt = flags % 2
  local ends = now + lease
  local expires = doubt == 1 and 0 or ends + retention
  local state, old_flags, old_token, changed, created, old_lease, old_expires, old_attempts, generation, old_owner =
    read(key)
  if not state then
    if old_flags then
      call('DEL', key) -- what remains of an expired one
    end
    if doubt ~= new_doubt or lease ~= new_lease or retention ~= new_retention then
      new = pack(CLAIMED, 'C', doubt, now, now, now, expires, 1, 0, ends)
      new_doubt, new_lease, new_retention = doubt, lease, retention
      new_expires = format('%.0f', ceil(expires / 1000))
    end
    if prints == '' then
      call('HSET', key, 'h', new .. owner, 'S', scope, 'K', name)
    else
      call('HSET', key, 'h', new .. owner, 'S', scope, 'K', name, 'p', sub(prints, 1, 33))
    end
    if doubt == 0 then
      call('PEXPIREAT', key, new_expires)
    else
      index_open_claim(key, ends)
    end
    return now
  end
  rare = rare or create_rare()
  if state == 'C' and old_owner == owner and not rare.is_mismatch(key, prints) then
    -- its reply was lost
    return {'claimed', old_token, old_attempts, generation, old_flags % 4 >= 2 and 1 or 0, call('HGET', key, 'e')}
  end
  local answer = rare.answer_for(key, prints, state, old_flags, old_token, old_lease, old_attempts, generation)
  if answer then
    if answer[1] == 'in_doubt' and state == 'C' then
      to_doubt(key, old_flags, old_token, created, old_attempts, generation, old_owner)
    elseif answer[1] == 'in_progress' and flags >= 2 and old_flags < 4 then
      call('HSET', key, 'h', pack(CLAIMED, 'C', old_flags + 4, old_token, changed, created, old_expires,
        old_attempts, generation, old_lease) .. old_owner)
    end
    return answer
  end
  if limit > 0 and old_attempts >= limit then
    local err = '1{"code":"attempts-exhausted"}' .. (call('HGET', key, 'e') or '')
    close(key, state, 'F', old_flags, old_token, created, old_expires, old_attempts, generation, old_owner,
      retention, false, err)
    return {'failed', old_token, old_attempts, generation, err}
  end
  local lapsed = state == 'C' and 1 or 0
  if lapsed == 0 then
    call('HDEL', key, 'r')
  end
  local token, attempts = math.max(old_token + 1, now), old_attempts + 1
  flags = doubt + 2 * lapsed + (old_flags >= 4 and 4 or 0) -- callers that waited for the last owner wait for this one
  call('HSET', key, 'h',
    pack(CLAIMED, 'C', flags, token, now, created, expires, attempts, generation, ends) .. owner)
  if prints ~= '' then
    call('HSET', key, 'p', sub(prints, 1, 33))
  end
  if doubt == 0 then
    expire(key, expires)
  else
    call('PERSIST', key)
    index_open_claim(key, ends)
  end
  return {'claimed', token, attempts, generation, lapsed, call('HGET', key, 'e')}
end

-- Ends a claim. target 1 done, 2 failed, 3 in doubt, 4 free; options 1: refund the attempt, 2: has a result, 4: has an
-- error
local function settle(key, options, owner, token, retention, target, _, _, result, err)
  target = target == 1 and 'D' or target == 2 and 'F' or target == 3 and 'I' or 'R'
  local state, flags, old_token, _, created, _, ttl, attempts, generation, old_owner = read(key)
  if not state or old_owner ~= owner or old_token ~= token then
    return 0
  end
  if state ~= 'C' and not (state == 'I' and target == 'D') then
    return state == target and 1 or 0 -- its reply was lost, or it was settled differently before
  end
  result, err = options % 4 >= 2 and result, options >= 4 and err
  if options % 2 == 1 then
    attempts, err = attempts - 1, call('HGET', key, 'e') -- of the attempt before
  end
  if target ~= 'I' then
    return close(
      key, state, target, flags, token, created, ttl, attempts, generation, owner, retention, result, err)
  end
  if result then call('HSET', key, 'r', result) end
  if err then call('HSET', key, 'e', err) elseif attempts > 1 then call('HDEL', key, 'e') end
  return to_doubt(key, flags, token, created, attempts, generation, owner)
end

function create_rare()
  local operations = {}

  function operations.is_mismatch(key, prints)
    local print = prints ~= '' and call('HGET', key, 'p')
    if not print then
      return false
    end
    for at = 1, #prints, 33 do
      if sub(prints, at, at + 32) == print then
        return false
      end
    end
    return true
  end

  -- The answer of an unexpired record to any caller but its owner; nil: the record may be claimed.
  function operations.answer_for(key, prints, state, flags, token, lease, attempts, generation)
    if operations.is_mismatch(key, prints) then
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

  -- The heartbeat: extends the lease of a claim that is still held.
  local function renew(key, _, owner, token, lease, retention)
    local state, flags, old_token, changed, created, _, _, attempts, generation, old_owner = read(key)
    if state ~= 'C' or old_owner ~= owner or old_token ~= token then
      return 0
    end
    local ends = now + lease
    local expires = 0
    if flags % 2 == 0 then
      expires = ends + retention
      expire(key, expires)
    else
      index_open_claim(key, ends)
    end
    call('HSET', key, 'h',
      pack(CLAIMED, 'C', flags, token, changed, created, expires, attempts, generation, ends) .. owner)
    return 1
  end

  -- Reads a record without claiming it.
  local function look(key, _, _, _, _, _, _, _, prints)
    local state, flags, token, _, _, lease, _, attempts, generation = read(key)
    return state and operations.answer_for(key, prints, state, flags, token, lease, attempts, generation)
      or {'absent', 0, 0, 0, false}
  end

  -- Records a success that was not claimed (mode S). options 2: has a result
  local function remember(key, options, _, _, retention, _, scope, name, result, prints)
    local token, made_at, attempts, generation = now, now, 0, 0
    local state, flags, old_token, _, created, lease, _, old_attempts, old_generation = read(key)
    if state then
      local answer = operations.answer_for(key, prints, state, flags, old_token, lease, old_attempts, old_generation)
      if answer then
        return answer[1] == 'done' and 1 or 0
      end
      token, made_at, attempts, generation = math.max(old_token + 1, now), created, old_attempts, old_generation
      if flags >= 4 then
        notify_waiters(key)
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

  -- An operator's decision: the owner is fenced out; free starts a new generation with no attempts.
  local function take_over(key, target, retention, result, err)
    local state, flags, token, _, created, _, ttl, attempts, generation = read(key)
    token = math.max(token + 1, now)
    if target == 'R' then
      attempts, generation = 0, generation + 1
    end
    return close(key, state, target, flags, token, created, ttl, attempts, generation, '', retention, result, err)
  end

  -- Frees a record for a new generation.
  local function forget(key, _, _, _, retention)
    if not read(key) then
      return 0
    end
    call('HDEL', key, 'p') -- the next claim may bring another payload
    return take_over(key, 'R', retention, false, false)
  end

  -- Settles a record in doubt. target and options as in settle
  local function resolve(key, options, _, _, retention, target, _, _, result, err)
    local state, flags, _, _, _, lease = read(key)
    if not (state == 'I' or (state == 'C' and flags % 2 == 1 and lease <= now)) then
      return 0
    end
    target = target == 1 and 'D' or target == 2 and 'F' or 'R'
    return take_over(key, target, retention, options % 4 >= 2 and result, options >= 4 and err)
  end

  -- The fields as a flat list; false: absent, or not of this state (its letter) or this scope, if given.
  local function get(key, _, _, _, _, _, _, _, letter, scope)
    local state = read(key)
    if not state or (letter ~= '' and letter ~= state) or (scope ~= '' and scope ~= call('HGET', key, 'S')) then
      return false
    end
    return call('HGETALL', key)
  end

  -- by the numbers that record_format.py gives them; claim is 1, and settle is 2
  operations[3], operations[4], operations[5] = renew, look, remember
  operations[6], operations[7], operations[8] = forget, resolve, get
  return operations
end

local replies = {}
for i = 1, #ARGV do
  local arg = ARGV[i]
  -- Three numbers, the sizes of the owner and of four texts, and where the owner begins; the texts follow it.
  local op, flags, owner_size, x, y, z, size1, size2, size3, size4, owner_at = unpack('<BBBdddI4I4I4I4', arg)
  local run = op == 1 and claim or op == 2 and settle
  if not run then
    rare = rare or create_rare()
    run = rare[op]
  end
  local text1 = owner_at + owner_size
  local text2 = text1 + size1
  local text3 = text2 + size2
  local text4 = text3 + size3
  local ok, reply = pcall(run, KEYS[i], flags, sub(arg, owner_at, text1 - 1), x, y, z, sub(arg, text1, text2 - 1),
    sub(arg, text2, text3 - 1), sub(arg, text3, text4 - 1), sub(arg, text4, text4 + size4 - 1))
  if not ok then
    reply = failure(reply, KEYS[i])
  end
  replies[i] = reply
end
return replies

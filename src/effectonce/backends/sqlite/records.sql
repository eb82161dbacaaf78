-- The statements of the SQLite store. Each is one atomic step: outside of a transaction it is its own.
-- Parameters have names, or stand in the order of the question marks. A claim sends one fingerprint of 33 bytes per
-- version, one after the other: a match starts at position 1, 34, 67 ..., so that `instr(...) % 33` is 1.

-- name: claim
-- Takes the record where it is absent, expired, free, or lapsed with rerun; otherwise it changes nothing.
-- After an insert the last rowid is the new `due`, which tells an insert from an update.
INSERT INTO {records} AS r (due, scope, key, state, owner, token, attempts, generation, lapsed, doubt_on_lapse,
                            lease_until, expires_at, created_at, changed_at, fingerprint, note)
VALUES (:due, :scope, :key, 'claimed', :owner, :now, 1, 0, 0, :doubt_on_lapse,
        :lease_until, :expires_at, :now, :now, :fingerprint, :note)
ON CONFLICT (scope, key) DO UPDATE SET
    state = 'claimed',
    owner = excluded.owner,
    token = max(r.token + 1, excluded.token),
    attempts = CASE WHEN r.expires_at <= excluded.changed_at THEN 1 ELSE r.attempts + 1 END,
    generation = CASE WHEN r.expires_at <= excluded.changed_at THEN 0 ELSE r.generation END,
    lapsed = CASE WHEN r.expires_at <= excluded.changed_at THEN 0 ELSE r.state = 'claimed' END,
    doubt_on_lapse = excluded.doubt_on_lapse,
    lease_until = excluded.lease_until,
    expires_at = excluded.expires_at,
    created_at = CASE WHEN r.expires_at <= excluded.changed_at THEN excluded.created_at ELSE r.created_at END,
    changed_at = excluded.changed_at,
    fingerprint = CASE WHEN r.expires_at <= excluded.changed_at OR excluded.fingerprint IS NOT NULL
                       THEN excluded.fingerprint ELSE r.fingerprint END,
    result = NULL,
    error = CASE WHEN r.expires_at <= excluded.changed_at THEN NULL ELSE r.error END,
    note = CASE WHEN r.expires_at <= excluded.changed_at THEN excluded.note ELSE coalesce(r.note, excluded.note) END
WHERE r.expires_at <= excluded.changed_at
   OR ((r.state = 'free' OR (r.state = 'claimed' AND r.doubt_on_lapse = 0
                             AND r.lease_until <= excluded.changed_at AND r.owner <> excluded.owner))
       AND (:max_attempts = 0 OR r.attempts < :max_attempts)
       AND (r.fingerprint IS NULL OR excluded.fingerprint IS NULL OR instr(:fingerprints, r.fingerprint) % 33 = 1));

-- name: stored_claim
-- The columns that answer a claim which was not granted, in the order of `record.StoredClaim`'s fields.
SELECT state, owner, token, attempts, generation, lapsed, doubt_on_lapse, lease_until, fingerprint, result, error,
       note
FROM {records} WHERE scope = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?);

-- name: lapse
-- Moves a claim whose lease has ended, and whose end means doubt, to in_doubt.
UPDATE {records} SET state = 'in_doubt', lease_until = NULL, changed_at = :now
WHERE scope = :scope AND key = :key AND token = :token
  AND state = 'claimed' AND doubt_on_lapse = 1 AND lease_until <= :now;

-- name: exhaust
-- Fails a record that a claim would get if it had attempts left.
UPDATE {records} SET state = 'failed', error = :error, result = NULL, lease_until = NULL, changed_at = :now,
                     expires_at = :expires_at
WHERE scope = :scope AND key = :key AND token = :token AND attempts >= :max_attempts AND expires_at > :now
  AND error IS :last_error
  AND (state = 'free' OR (state = 'claimed' AND doubt_on_lapse = 0 AND lease_until <= :now));

-- name: settle
-- Ends a claim. A completion is also allowed from in_doubt. A refund keeps the error of the attempt before.
UPDATE {records} SET state = :state, result = :result, error = CASE WHEN :refund THEN error ELSE :error END,
                     attempts = attempts - :refund, lease_until = NULL, changed_at = :now, expires_at = :expires_at, note = coalesce(:note, note)
WHERE scope = :scope AND key = :key AND owner = :owner AND token = :token
  AND (state = 'claimed' OR (state = 'in_doubt' AND :state = 'done'))
  AND (expires_at IS NULL OR expires_at > :now);

-- name: complete
-- Completes a record inside the caller's own transaction. Parameters are numbered, as sessions take them.
UPDATE {records} SET state = 'done', result = $6, error = NULL, lease_until = NULL, changed_at = $7,
                     expires_at = $7 + $5
WHERE scope = $1 AND key = $2 AND owner = $3 AND token = $4 AND (state = 'claimed' OR state = 'in_doubt')
  AND (expires_at IS NULL OR expires_at > $7)
RETURNING 1;

-- name: note
-- Writes how far an intent or a saga has come.
UPDATE {records} SET note = :note, changed_at = :now
WHERE scope = :scope AND key = :key AND owner = :owner AND token = :token AND state = 'claimed'
  AND (expires_at IS NULL OR expires_at > :now);

-- name: renew
-- The heartbeat: extends the lease of a claim that is still held.
UPDATE {records} SET lease_until = :lease_until,
                     expires_at = CASE WHEN doubt_on_lapse = 1 THEN NULL ELSE :expires_at END
WHERE scope = :scope AND key = :key AND owner = :owner AND token = :token AND state = 'claimed'
  AND (expires_at IS NULL OR expires_at > :now);

-- name: remember
-- Records a success that was not claimed (mode S). It never overwrites a live claim, a doubt, a failure or an earlier
-- success.
INSERT INTO {records} AS r (due, scope, key, state, owner, token, attempts, generation, lapsed, doubt_on_lapse,
                            expires_at, created_at, changed_at, fingerprint, result)
VALUES (:due, :scope, :key, 'done', x'', :now, 0, 0, 0, 0, :expires_at, :now, :now, :fingerprint, :result)
ON CONFLICT (scope, key) DO UPDATE SET
    state = 'done',
    owner = x'',
    token = max(r.token + 1, excluded.token),
    attempts = CASE WHEN r.expires_at <= excluded.changed_at THEN 0 ELSE r.attempts END,
    generation = CASE WHEN r.expires_at <= excluded.changed_at THEN 0 ELSE r.generation END,
    lapsed = 0,
    doubt_on_lapse = 0,
    lease_until = NULL,
    expires_at = excluded.expires_at,
    created_at = CASE WHEN r.expires_at <= excluded.changed_at THEN excluded.created_at ELSE r.created_at END,
    changed_at = excluded.changed_at,
    fingerprint = excluded.fingerprint,
    result = excluded.result,
    error = NULL,
    note = NULL
WHERE r.expires_at <= excluded.changed_at
   OR ((r.state = 'free' OR (r.state = 'claimed' AND r.doubt_on_lapse = 0
                             AND r.lease_until <= excluded.changed_at))
       AND (r.fingerprint IS NULL OR excluded.fingerprint IS NULL OR instr(:fingerprints, r.fingerprint) % 33 = 1));

-- name: get
SELECT {columns} FROM {records} WHERE scope = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?);

-- name: forget
-- Frees a record for a new generation.
UPDATE {records} SET state = 'free', owner = x'', token = max(token + 1, :now), attempts = 0,
                     generation = generation + 1, lapsed = 0, lease_until = NULL, changed_at = :now,
                     expires_at = :expires_at, result = NULL, error = NULL, fingerprint = NULL, note = NULL
WHERE scope = :scope AND key = :key AND (expires_at IS NULL OR expires_at > :now);

-- name: resolve
-- An operator's decision on a record in doubt. A retry starts a new generation, with no attempt counted.
UPDATE {records} SET state = :state, owner = x'', token = max(token + 1, :now),
                     attempts = CASE WHEN :is_retry THEN 0 ELSE attempts END, generation = generation + :is_retry,
                     lapsed = 0, lease_until = NULL, changed_at = :now, expires_at = :expires_at,
                     result = :result, error = :error
WHERE scope = :scope AND key = :key
  AND (state = 'in_doubt' OR (state = 'claimed' AND doubt_on_lapse = 1 AND lease_until <= :now));

-- A page of a list walks an index from a position for a bounded number of rows: `edge` finds where the walk ends,
-- `page` reads the matching rows up to there. `attention`: failed, free and in_doubt, newest change first. `others`: by
-- scope and key. No position has `due` in it, which a sweep changes.

-- name: edge_attention
SELECT changed_at, scope, key FROM {records}
WHERE state = ? AND state > 'done' AND (changed_at, scope, key) < (?, ?, ?)
ORDER BY changed_at DESC, scope DESC, key DESC LIMIT 1 OFFSET ?;

-- name: page_attention
SELECT changed_at, scope, key, {columns} FROM {records}
WHERE state = ? AND state > 'done' AND (changed_at, scope, key) < (?, ?, ?) AND (changed_at, scope, key) >= (?, ?, ?)
  AND (? IS NULL OR scope = ?) AND instr(key, ?) AND (expires_at IS NULL OR expires_at > ?)
ORDER BY changed_at DESC, scope DESC, key DESC LIMIT ?;

-- name: newest
-- Part of the statements below: the rows to sort have only the columns that the sort needs.
SELECT changed_at, scope, key, {columns} FROM {records} WHERE due IN (
    SELECT due FROM sorted
    WHERE (changed_at, scope, key) < (:changed_at, :scope_before, :key_before)
      AND (:scope IS NULL OR scope = :scope) AND (:state IS NULL OR state = :state) AND instr(key, :key_contains)
      AND (expires_at IS NULL OR expires_at > :now)
    ORDER BY changed_at DESC, scope DESC, key DESC LIMIT :size)
ORDER BY changed_at DESC, scope DESC, key DESC;

-- name: newest_all
-- Of the rows that expire last, those with the last changes.
WITH sorted AS (
    SELECT due, scope, key, state, changed_at, expires_at FROM {records} ORDER BY due DESC LIMIT :most)
{newest};

-- name: newest_of_scope
WITH sorted AS (
    SELECT due, scope, key, state, changed_at, expires_at FROM {records} WHERE scope = :scope LIMIT :most)
{newest};

-- name: newest_unfinished
WITH sorted AS (
    SELECT due, scope, key, state, changed_at, expires_at FROM {records}
    WHERE note IS NOT NULL AND (state = 'claimed' OR state = 'free') AND (:scope IS NULL OR scope = :scope) LIMIT :most)
{newest};

-- name: has_more_all
-- Whether there are more rows than are sorted.
SELECT 1 FROM {records} LIMIT 1 OFFSET :most;

-- name: has_more_of_scope
SELECT 1 FROM {records} WHERE scope = :scope LIMIT 1 OFFSET :most;

-- name: has_more_unfinished
SELECT 1 FROM {records}
WHERE note IS NOT NULL AND (state = 'claimed' OR state = 'free') AND (:scope IS NULL OR scope = :scope)
LIMIT 1 OFFSET :most;

-- name: edge_others
SELECT 0, scope, key FROM {records} WHERE (scope, key) > (?, ?) AND (scope, key) <= (?, ?)
ORDER BY scope, key LIMIT 1 OFFSET ?;

-- name: page_others
SELECT 0, scope, key, {columns} FROM {records}
WHERE (scope, key) > (?, ?) AND (scope, key) <= (?, ?)
  AND (? IS NULL OR state = ?) AND (expires_at IS NULL OR expires_at > ?)
ORDER BY scope, key LIMIT ?;

-- name: edge_unfinished
SELECT 0, scope, key FROM {records}
WHERE note IS NOT NULL AND (state = 'claimed' OR state = 'free') AND (scope, key) > (?, ?) AND (scope, key) <= (?, ?)
ORDER BY scope, key LIMIT 1 OFFSET ?;

-- name: page_unfinished
SELECT 0, scope, key, {columns} FROM {records}
WHERE note IS NOT NULL AND (state = 'claimed' OR state = 'free') AND (scope, key) > (?, ?) AND (scope, key) <= (?, ?)
  AND (? IS NULL OR state = ?) AND (expires_at IS NULL OR expires_at > ?)
ORDER BY scope, key LIMIT ?;

-- name: count_attention
SELECT count(*) FROM (
    SELECT 1 FROM {records} WHERE state = ? AND state > 'done' AND (expires_at IS NULL OR expires_at > ?) LIMIT ?);

-- name: edge_recent
SELECT due FROM {records} ORDER BY due DESC LIMIT 1 OFFSET ?;

-- name: count_recent
-- Counts claimed and done, which no index holds, among the rows after an edge.
SELECT count(*) FROM (
    SELECT 1 FROM {records} WHERE due > ? AND state = ? AND (expires_at IS NULL OR expires_at > ?)
    ORDER BY due DESC LIMIT ?);

-- name: oldest_in_doubt
SELECT min(changed_at) FROM {records} WHERE state = 'in_doubt' AND state > 'done';

-- name: due
-- The rows that the sweep has to visit now.
SELECT due, expires_at FROM {records} WHERE due <= ? ORDER BY due LIMIT ?;

-- name: overdue
SELECT count(*), min(expires_at) FROM (SELECT expires_at FROM {records} WHERE due <= ? ORDER BY due LIMIT ?)
WHERE expires_at <= ?;

-- name: early
-- Rows that expired before their `due`: settled with a shorter retention than they were claimed with.
SELECT due FROM {records} WHERE expires_at / 1000 < due >> 20 AND expires_at <= ? ORDER BY expires_at LIMIT ?;

-- name: delete
DELETE FROM {records} WHERE due = ? AND expires_at <= ?;

-- name: postpone
-- The sweep visits this row again later. Where another row has that `due`, it stays, and the next sweep tries again.
UPDATE OR IGNORE {records} SET due = ? WHERE due = ?;

-- name: lapsed
-- Claims that lapse to in_doubt and whose lease has ended.
SELECT due FROM {records} WHERE doubt_on_lapse = 1 AND state = 'claimed' AND lease_until <= ?
ORDER BY lease_until LIMIT ?;

-- name: doubt
UPDATE {records} SET state = 'in_doubt', lease_until = NULL, changed_at = ? WHERE due = ?;

-- name: read_meta
SELECT value FROM {meta} WHERE name = ?;

-- name: touch_meta
-- Writes nothing, and fails on a file that cannot be written; BEGIN IMMEDIATE alone does not.
UPDATE {meta} SET value = value WHERE 0;

-- name: write_meta
INSERT INTO {meta} (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

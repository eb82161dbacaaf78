-- The inbox's statements for PostgreSQL, run on the caller's own connection. `-- name: x` starts statement x.
--
-- {inbox}, {attempts}  the two tables
-- {now}                the server's clock, in microseconds since the epoch


-- name: insert
-- For a duplicate no row is returned, and the transaction stays usable (F40: a unique violation would abort it). Where
-- another transaction has inserted the same key and is still open, this waits for its end.
INSERT INTO {inbox} (scope, key, fingerprint, created_at, expires_at)
VALUES ($1, $2, $3, {now}, {now} + $4)
ON CONFLICT (scope, key) DO NOTHING RETURNING created_at;

-- name: insert_many
-- $2 is an array literal of keys; $3 holds their fingerprints, 33 bytes each, one after the other, zeros for none.
-- Rows are inserted in the order of their keys, so that two batches never deadlock.
INSERT INTO {inbox} (scope, key, fingerprint, created_at, expires_at)
SELECT $1, m.key, NULLIF(substring($3::bytea FROM m.n::int * 33 - 32 FOR 33), decode(repeat('00', 33), 'hex')),
       {now}, {now} + $4
FROM unnest($2::text::text[]) WITH ORDINALITY AS m (key, n) ORDER BY m.key COLLATE "C"
ON CONFLICT (scope, key) DO NOTHING RETURNING key, created_at;

-- name: find
-- What a duplicate needs: the payload's fingerprint to compare, the result to replay.
SELECT fingerprint, result FROM {inbox} WHERE scope = $1 AND key = $2;

-- name: find_many
SELECT key, fingerprint FROM {inbox} WHERE scope = $1 AND key = ANY ($2::text::text[]);

-- name: store
-- The handler's result, in the transaction that inserted the row.
UPDATE {inbox} SET result = $3 WHERE scope = $1 AND key = $2;

-- name: ours
-- Whether the row is the one that this delivery inserted, and not a later delivery's: created_at is unique to it.
SELECT 1 FROM {inbox} WHERE scope = $1 AND key = $2 AND created_at = $3;

-- name: forget_many
-- Takes rows back that would be committed without their effect.
DELETE FROM {inbox} WHERE scope = $1 AND key = ANY ($2::text::text[]);

-- name: count
-- Counts the start of an attempt. For a message that is handled already nothing is counted, and no row returned.
INSERT INTO {attempts} AS a (scope, key, attempts, expires_at)
SELECT $1::text, $2::text, 1, {now} + $3
WHERE NOT EXISTS (SELECT 1 FROM {inbox} WHERE scope = $1::text AND key = $2::text)
ON CONFLICT (scope, key) DO UPDATE SET attempts = a.attempts + 1, expires_at = EXCLUDED.expires_at
RETURNING attempts;

-- name: refund
-- Takes back the start of an attempt whose handler did not run.
UPDATE {attempts} SET attempts = attempts - 1 WHERE scope = $1 AND key = $2 AND attempts > 0;

-- name: uncount
-- The message is handled: its attempts need no count any more.
DELETE FROM {attempts} WHERE scope = $1 AND key = $2;

-- name: purge
-- Deletes expired rows, oldest first. Locked rows wait for the next purge.
DELETE FROM {inbox} WHERE (scope, key) IN (
    SELECT scope, key FROM {inbox} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
) RETURNING 1;

-- name: purge_attempts
DELETE FROM {attempts} WHERE (scope, key) IN (
    SELECT scope, key FROM {attempts} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
) RETURNING 1;

-- name: settings
-- The settings that decide whether a confirmed commit survives a crash, and whether the table exists.
-- A missing table is NULL: the question must not abort the caller's transaction.
SELECT current_setting('fsync'), current_setting('synchronous_commit'),
       (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass($1));

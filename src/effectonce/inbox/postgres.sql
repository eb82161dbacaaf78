-- The inbox's statements for PostgreSQL, run on the caller's own connection. `-- name: x` starts statement x.
--
-- {inbox}, {starts}  the two tables
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
INSERT INTO {starts} AS s (scope, key, unreported, reported, expires_at)
SELECT $1::text, $2::text, 1, 0, {now} + $3
WHERE NOT EXISTS (SELECT 1 FROM {inbox} WHERE scope = $1::text AND key = $2::text)
ON CONFLICT (scope, key) DO UPDATE SET unreported = s.unreported + 1, expires_at = EXCLUDED.expires_at
RETURNING unreported, reported, last_error;

-- name: refund
-- Takes back the start of an attempt that does not count: its handler did not run, or was cut off.
UPDATE {starts} SET unreported = unreported - 1 WHERE scope = $1 AND key = $2 AND unreported > 0;

-- name: report
-- An attempt has failed with the error $5. $4 is 1 if its start was not counted, else 0.
INSERT INTO {starts} AS s (scope, key, unreported, reported, last_error, expires_at)
VALUES ($1, $2, 0, 1, $5, {now} + $3)
ON CONFLICT (scope, key) DO UPDATE SET reported = s.reported + s.unreported + $4::integer, unreported = 0,
    last_error = EXCLUDED.last_error, expires_at = EXCLUDED.expires_at;

-- name: uncount
-- The message is handled: its attempts need no count any more.
DELETE FROM {starts} WHERE scope = $1 AND key = $2;

-- name: purge
-- Deletes expired rows, oldest first. Locked rows wait for the next purge.
DELETE FROM {inbox} WHERE (scope, key) IN (
    SELECT scope, key FROM {inbox} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
) RETURNING 1;

-- name: purge_attempts
DELETE FROM {starts} WHERE (scope, key) IN (
    SELECT scope, key FROM {starts} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
) RETURNING 1;

-- name: settings
-- The settings that decide whether a confirmed commit survives a crash, and whether both tables exist.
-- A missing table is NULL: the question must not abort the caller's transaction.
SELECT current_setting('fsync'), current_setting('synchronous_commit'),
       (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass($1) AND to_regclass($2) IS NOT NULL);

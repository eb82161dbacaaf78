-- What the inbox asks of PostgreSQL, on the caller's own connection. `-- name: x` starts statement x.
--
-- {inbox}, {attempts}  the two tables
-- {now}                the clock, in microseconds


-- name: insert
-- No row comes back for a duplicate, and the transaction goes on (F40). Where another transaction has inserted the same
-- key and is still open, this waits for its end.
INSERT INTO {inbox} (scope, key, fingerprint, created_at, expires_at)
VALUES ($1, $2, $3, {now}, {now} + $4)
ON CONFLICT (scope, key) DO NOTHING RETURNING created_at;

-- name: insert_many
-- The keys are an array literal in one text; the fingerprints, of 33 bytes each, stand one behind the other, and nothing
-- but zeros is none. In the order of their keys, so that two batches never wait for each other.
INSERT INTO {inbox} (scope, key, fingerprint, created_at, expires_at)
SELECT $1, m.key, NULLIF(substring($3::bytea FROM m.n::int * 33 - 32 FOR 33), decode(repeat('00', 33), 'hex')),
       {now}, {now} + $4
FROM unnest($2::text::text[]) WITH ORDINALITY AS m (key, n) ORDER BY m.key COLLATE "C"
ON CONFLICT (scope, key) DO NOTHING RETURNING key, created_at;

-- name: find
SELECT fingerprint, result FROM {inbox} WHERE scope = $1 AND key = $2;

-- name: find_many
SELECT key, fingerprint FROM {inbox} WHERE scope = $1 AND key = ANY ($2::text::text[]);

-- name: store
UPDATE {inbox} SET result = $3 WHERE scope = $1 AND key = $2;

-- name: ours
-- Whether the row is the one that this delivery has inserted, and not a later one's.
SELECT 1 FROM {inbox} WHERE scope = $1 AND key = $2 AND created_at = $3;

-- name: forget_many
DELETE FROM {inbox} WHERE scope = $1 AND key = ANY ($2::text::text[]);

-- name: count
-- Nothing is counted, and no row comes back, for a message that is handled already.
INSERT INTO {attempts} AS a (scope, key, attempts, expires_at)
SELECT $1::text, $2::text, 1, {now} + $3
WHERE NOT EXISTS (SELECT 1 FROM {inbox} WHERE scope = $1::text AND key = $2::text)
ON CONFLICT (scope, key) DO UPDATE SET attempts = a.attempts + 1, expires_at = EXCLUDED.expires_at
RETURNING attempts;

-- name: refund
UPDATE {attempts} SET attempts = attempts - 1 WHERE scope = $1 AND key = $2 AND attempts > 0;

-- name: uncount
DELETE FROM {attempts} WHERE scope = $1 AND key = $2;

-- name: purge
DELETE FROM {inbox} WHERE (scope, key) IN (
    SELECT scope, key FROM {inbox} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
) RETURNING 1;

-- name: purge_attempts
DELETE FROM {attempts} WHERE (scope, key) IN (
    SELECT scope, key FROM {attempts} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
) RETURNING 1;

-- name: settings
-- What is missing is NULL: asking must not abort the caller's transaction.
SELECT current_setting('fsync'), current_setting('synchronous_commit'),
       (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass($1));

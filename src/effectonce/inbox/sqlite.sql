-- What the inbox asks of SQLite, on the caller's own connection. `-- name: x` starts statement x.
--
-- {inbox}, {attempts}    the two tables
-- {now}                  the clock, in microseconds
--
-- What writes begins with INSERT, UPDATE or DELETE: by that the module `sqlite3` knows when to begin a transaction.


-- name: insert
-- No row comes back for a duplicate. The clock has milliseconds only: the rest is random, so that `ours` knows its row.
INSERT INTO {inbox} (scope, key, fingerprint, created_at, expires_at)
VALUES ($1, $2, $3, {now} + abs(random() % 1000), {now} + $4)
ON CONFLICT (scope, key) DO NOTHING RETURNING created_at;

-- name: insert_many
-- The keys are a JSON array; the fingerprints, of 33 bytes each, stand one behind the other, and nothing but zeros is
-- none. (A row of placeholders for each would be compiled anew for every number of them: 50 times as long.)
INSERT INTO {inbox} (scope, key, fingerprint, created_at, expires_at)
SELECT $1, m.value, NULLIF(substr($3, m.key * 33 + 1, 33), zeroblob(33)), {now} + abs(random() % 1000), {now} + $4
FROM json_each($2) AS m WHERE true
ON CONFLICT (scope, key) DO NOTHING RETURNING key, created_at;

-- name: find
SELECT fingerprint, result FROM {inbox} WHERE scope = $1 AND key = $2;

-- name: find_many
SELECT key, fingerprint FROM {inbox} WHERE scope = $1 AND key IN (SELECT value FROM json_each($2));

-- name: store
UPDATE {inbox} SET result = $3 WHERE scope = $1 AND key = $2;

-- name: ours
-- Whether the row is the one that this delivery has inserted, and not a later one's.
SELECT 1 FROM {inbox} WHERE scope = $1 AND key = $2 AND created_at = $3;

-- name: forget_many
DELETE FROM {inbox} WHERE scope = $1 AND key IN (SELECT value FROM json_each($2));

-- name: count
-- Nothing is counted, and no row comes back, for a message that is handled already.
INSERT INTO {attempts} (scope, key, attempts, expires_at)
SELECT $1, $2, 1, {now} + $3 WHERE NOT EXISTS (SELECT 1 FROM {inbox} WHERE scope = $1 AND key = $2)
ON CONFLICT (scope, key) DO UPDATE SET attempts = attempts + 1, expires_at = excluded.expires_at
RETURNING attempts;

-- name: refund
UPDATE {attempts} SET attempts = attempts - 1 WHERE scope = $1 AND key = $2 AND attempts > 0;

-- name: uncount
DELETE FROM {attempts} WHERE scope = $1 AND key = $2;

-- name: purge
DELETE FROM {inbox} WHERE rowid IN (
    SELECT rowid FROM {inbox} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1
) RETURNING 1;

-- name: purge_attempts
DELETE FROM {attempts} WHERE rowid IN (
    SELECT rowid FROM {attempts} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1
) RETURNING 1;

-- name: settings
SELECT (SELECT journal_mode FROM pragma_journal_mode), (SELECT synchronous FROM pragma_synchronous),
       (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = $1);

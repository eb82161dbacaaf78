-- The inbox's statements for SQLite, run on the caller's own connection. `-- name: x` starts statement x.
--
-- {inbox}, {starts}    the two tables
-- {now}                  the machine's clock, in microseconds since the epoch
--
-- Every statement that writes starts with INSERT, UPDATE or DELETE: the module `sqlite3` begins a transaction only for
-- these words.


-- name: insert
-- For a duplicate no row is returned. The clock has milliseconds; the microseconds are random, so that `ours` can tell
-- its row from a later one.
INSERT INTO {inbox} (scope, key, fingerprint, created_at, expires_at)
VALUES ($1, $2, $3, {now} + abs(random() % 1000), {now} + $4)
ON CONFLICT (scope, key) DO NOTHING RETURNING created_at;

-- name: insert_many
-- $2 is a JSON array of keys; $3 holds their fingerprints of 33 bytes each, one after the other, with zeros for none.
-- (A group of placeholders per key would be compiled again for every number of keys: 50 times as slow.)
INSERT INTO {inbox} (scope, key, fingerprint, created_at, expires_at)
SELECT $1, m.value, NULLIF(substr($3, m.key * 33 + 1, 33), zeroblob(33)), {now} + abs(random() % 1000), {now} + $4
FROM json_each($2) AS m WHERE true
ON CONFLICT (scope, key) DO NOTHING RETURNING key, created_at;

-- name: find
-- What a duplicate needs: the payload's fingerprint to compare, the result to replay.
SELECT fingerprint, result FROM {inbox} WHERE scope = $1 AND key = $2;

-- name: find_many
SELECT key, fingerprint FROM {inbox} WHERE scope = $1 AND key IN (SELECT value FROM json_each($2));

-- name: store
-- The handler's result, in the transaction that inserted the row.
UPDATE {inbox} SET result = $3 WHERE scope = $1 AND key = $2;

-- name: ours
-- Whether the row is the one that this delivery inserted, and not a later delivery's: created_at is unique to it.
SELECT 1 FROM {inbox} WHERE scope = $1 AND key = $2 AND created_at = $3;

-- name: forget_many
-- Takes rows back that would be committed without their effect.
DELETE FROM {inbox} WHERE scope = $1 AND key IN (SELECT value FROM json_each($2));

-- name: count
-- Counts the start of an attempt. For a message that is handled already nothing is counted, and no row returned.
INSERT INTO {starts} (scope, key, unreported, reported, expires_at)
SELECT $1, $2, 1, 0, {now} + $3 WHERE NOT EXISTS (SELECT 1 FROM {inbox} WHERE scope = $1 AND key = $2)
ON CONFLICT (scope, key) DO UPDATE SET unreported = unreported + 1, expires_at = excluded.expires_at
RETURNING unreported, reported, last_error;

-- name: refund
-- Takes back the start of an attempt that does not count: its handler did not run, or was cut off.
UPDATE {starts} SET unreported = unreported - 1 WHERE scope = $1 AND key = $2 AND unreported > 0;

-- name: report
-- An attempt has failed with the error $5. $4 is 1 if its start was not counted, else 0.
INSERT INTO {starts} (scope, key, unreported, reported, last_error, expires_at)
VALUES ($1, $2, 0, 1, $5, {now} + $3)
ON CONFLICT (scope, key) DO UPDATE SET reported = reported + unreported + $4, unreported = 0,
    last_error = excluded.last_error, expires_at = excluded.expires_at;

-- name: uncount
-- The message is handled: its attempts need no count any more.
DELETE FROM {starts} WHERE scope = $1 AND key = $2;

-- name: purge
-- Deletes expired rows, oldest first.
DELETE FROM {inbox} WHERE rowid IN (
    SELECT rowid FROM {inbox} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1
) RETURNING 1;

-- name: purge_attempts
DELETE FROM {starts} WHERE rowid IN (
    SELECT rowid FROM {starts} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1
) RETURNING 1;

-- name: settings
-- The settings that decide whether a confirmed commit survives a crash, and whether both tables exist.
SELECT (SELECT journal_mode FROM pragma_journal_mode), (SELECT synchronous FROM pragma_synchronous),
       (SELECT count(*) = 2 FROM sqlite_master WHERE type = 'table' AND name IN ($1, $2));

-- What the inbox asks of MySQL and MariaDB, on the caller's own connection. `-- name: x` starts statement x.
--
-- {inbox}, {attempts}    the two tables
-- {now}                  the clock, in microseconds
-- {rows}, {ids}          as many groups of placeholders as there are messages
--
-- Bytes and texts come as hexadecimal, which no character set, quoting mode or driver's escaping can change.
-- Who was first is never read off affected rows: SQLAlchemy and Django have the server count them in another way.


-- name: insert
-- The nonce of the first stays. Where another transaction has inserted the same key and is still open, this waits for
-- its end. MariaDB gets RETURNING; MySQL is asked by `find`.
INSERT INTO {inbox} (id, scope, `key`, nonce, fingerprint, created_at, expires_at)
VALUES {rows}
ON DUPLICATE KEY UPDATE id = id;

-- name: find
-- A plain SELECT under REPEATABLE READ would not see what was committed since the transaction began.
SELECT nonce, fingerprint, result FROM {inbox} WHERE id = UNHEX($1) FOR UPDATE;

-- name: find_many
SELECT id, nonce, fingerprint FROM {inbox} WHERE id IN ({ids}) FOR UPDATE;

-- name: store
UPDATE {inbox} SET result = UNHEX($2) WHERE id = UNHEX($1);

-- name: ours
-- Whether the row is the one that this delivery has inserted, and not a later one's.
SELECT 1 FROM {inbox} WHERE id = UNHEX($1) AND nonce = UNHEX($2);

-- name: forget_many
DELETE FROM {inbox} WHERE id IN ({ids});

-- name: count
-- Nothing is counted for a message that is handled already.
INSERT INTO {attempts} (id, scope, `key`, attempts, expires_at)
SELECT UNHEX($1), CONVERT(UNHEX($2) USING utf8mb4), CONVERT(UNHEX($3) USING utf8mb4), 1, {now} + $4 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {inbox} WHERE id = UNHEX($1))
ON DUPLICATE KEY UPDATE attempts = attempts + 1, expires_at = {now} + $4;

-- name: counted
-- The counter as this transaction has left it; no row for a message that is handled already.
SELECT attempts FROM {attempts} WHERE id = UNHEX($1)
AND NOT EXISTS (SELECT 1 FROM {inbox} WHERE {inbox}.id = {attempts}.id) FOR UPDATE;

-- name: refund
UPDATE {attempts} SET attempts = attempts - 1 WHERE id = UNHEX($1) AND attempts > 0;

-- name: uncount
DELETE FROM {attempts} WHERE id = UNHEX($1);

-- name: due
SELECT id FROM {inbox} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED;

-- name: due_attempts
SELECT id FROM {attempts} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED;

-- name: forget_attempts
DELETE FROM {attempts} WHERE id IN ({ids});

-- name: settings
SELECT @@innodb_flush_log_at_trx_commit,
       (SELECT engine FROM information_schema.tables WHERE table_schema = COALESCE($1, DATABASE()) AND table_name = $2);

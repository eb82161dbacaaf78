-- The inbox's statements for MySQL and MariaDB, run on the caller's own connection. `-- name: x` starts statement x.
--
-- {inbox}, {starts}    the two tables
-- {now}                  the server's clock, in microseconds since the epoch
-- {rows}, {ids}          as many groups of placeholders as there are messages
-- {columns}              of the rows that were there
--
-- Bytes and texts are sent as hexadecimal, which no character set, quoting mode or driver's escaping can change.
-- Whether a row is new is never read off affected rows: SQLAlchemy and Django have the server count them differently.


-- name: insert
-- A duplicate changes nothing, so the nonce of the first insert stays and tells who was first. Where another
-- transaction has inserted the same key and is still open, this waits for its end. On MariaDB RETURNING is appended;
-- on MySQL `find` follows.
INSERT INTO {inbox} (id, scope, `key`, nonce, fingerprint, created_at, expires_at)
VALUES {rows}
ON DUPLICATE KEY UPDATE id = id;

-- name: find
-- A plain SELECT under REPEATABLE READ would not see what was committed since the transaction began.
SELECT {columns} FROM {inbox} WHERE id IN ({ids}) FOR UPDATE;

-- name: store
-- The handler's result, in the transaction that inserted the row.
UPDATE {inbox} SET result = UNHEX($2) WHERE id = UNHEX($1);

-- name: ours
-- Whether the row is the one that this delivery inserted, and not a later delivery's: it has the nonce.
SELECT 1 FROM {inbox} WHERE id = UNHEX($1) AND nonce = UNHEX($2);

-- name: forget_many
-- Takes rows back that would be committed without their effect.
DELETE FROM {inbox} WHERE id IN ({ids});

-- name: count
-- Counts the start of an attempt. For a message that is handled already nothing is counted.
INSERT INTO {starts} (id, scope, `key`, unreported, reported, expires_at)
SELECT UNHEX($1), CONVERT(UNHEX($2) USING utf8mb4), CONVERT(UNHEX($3) USING utf8mb4), 1, 0, {now} + $4 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {inbox} WHERE id = UNHEX($1))
ON DUPLICATE KEY UPDATE unreported = unreported + 1, expires_at = {now} + $4;

-- name: counted
-- The counter as `count` has left it; no row for a message that is handled already.
SELECT unreported, reported, last_error FROM {starts} WHERE id = UNHEX($1)
AND NOT EXISTS (SELECT 1 FROM {inbox} WHERE {inbox}.id = {starts}.id) FOR UPDATE;

-- name: refund
-- Takes back the start of an attempt that does not count: its handler did not run, or was cut off.
UPDATE {starts} SET unreported = unreported - 1 WHERE id = UNHEX($1) AND unreported > 0;

-- name: report
-- An attempt has failed with the error $6. $5 is 1 if its start was not counted, else 0. MySQL assigns from left to
-- right.
INSERT INTO {starts} (id, scope, `key`, unreported, reported, last_error, expires_at)
VALUES (UNHEX($1), CONVERT(UNHEX($2) USING utf8mb4), CONVERT(UNHEX($3) USING utf8mb4), 0, 1,
        CONVERT(UNHEX($6) USING utf8mb4), {now} + $4)
ON DUPLICATE KEY UPDATE reported = reported + unreported + $5, unreported = 0,
    last_error = CONVERT(UNHEX($6) USING utf8mb4), expires_at = {now} + $4;

-- name: uncount
-- The message is handled: its attempts need no count any more.
DELETE FROM {starts} WHERE id = UNHEX($1);

-- name: due
-- The expired rows, oldest first; locked rows wait for the next purge. `forget_many` deletes them by primary key: a
-- DELETE over the index would lock the gaps between its entries.
SELECT id FROM {inbox} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED;

-- name: due_attempts
SELECT id FROM {starts} WHERE expires_at <= {now} ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED;

-- name: forget_attempts
DELETE FROM {starts} WHERE id IN ({ids});

-- name: settings
-- The settings that decide whether a confirmed commit survives a crash, and whether both tables exist.
SELECT @@innodb_flush_log_at_trx_commit,
       (SELECT i.engine FROM information_schema.tables i, information_schema.tables s
        WHERE i.table_schema = COALESCE($1, DATABASE()) AND i.table_name = $2
          AND s.table_schema = COALESCE($1, DATABASE()) AND s.table_name = $3);

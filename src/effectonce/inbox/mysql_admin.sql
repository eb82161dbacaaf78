-- The statements of operators on an inbox in MySQL and MariaDB, on a connection of a store's own: each is a transaction
-- of its own, in READ COMMITTED. `-- name: x` starts statement x.
--
-- {inbox}, {starts}  the two tables
-- {now}                the database's clock, in microseconds since the epoch
-- {ids}                placeholders, one for each row
--
-- Every list walks along the index over times of expiry, and reads no more rows than its limit. No index has the scopes
-- or the keys, only their hashes: so a search that does not know the scope reads the rows that expire last.


-- name: now
SELECT {now};

-- name: list
-- Rows before ($1, $2), the last to expire first; none that has expired by $3. $2 is the hash of scope and key.
SELECT scope, `key`, created_at, expires_at, NULL, fingerprint, OCTET_LENGTH(result) FROM {inbox}
WHERE expires_at > $3 AND expires_at <= $1 AND (expires_at < $1 OR id < UNHEX($2))
ORDER BY expires_at DESC, id DESC LIMIT $4;

-- name: list_attempts
SELECT scope, `key`, NULL, expires_at, reported + unreported, NULL, NULL FROM {starts}
WHERE expires_at > $3 AND expires_at <= $1 AND (expires_at < $1 OR id < UNHEX($2))
ORDER BY expires_at DESC, id DESC LIMIT $4;

-- name: show
SELECT scope, `key`, created_at, expires_at, NULL, fingerprint, OCTET_LENGTH(result), result FROM {inbox}
WHERE id = UNHEX($1);

-- name: show_attempts
SELECT scope, `key`, NULL, expires_at, reported + unreported, NULL, NULL FROM {starts} WHERE id = UNHEX($1);

-- name: scopes
-- The scopes, up to $1 of them, of the $2 rows that expire last.
SELECT DISTINCT i.scope FROM (SELECT id FROM {inbox} ORDER BY expires_at DESC LIMIT $2) r JOIN {inbox} i ON i.id = r.id
LIMIT $1;

-- name: find
SELECT scope, `key`, created_at, expires_at, NULL, fingerprint, OCTET_LENGTH(result) FROM {inbox} WHERE id IN ({ids});

-- name: find_recent
-- Up to $3 rows, of the $4 that expire last, whose keys are from $1 up to before $2. Compared as bytes: the column's
-- collation pads with spaces.
SELECT i.scope, i.`key`, i.created_at, i.expires_at, NULL, i.fingerprint, OCTET_LENGTH(i.result)
FROM (SELECT id FROM {inbox} ORDER BY expires_at DESC LIMIT $4) r JOIN {inbox} i ON i.id = r.id
WHERE CAST(i.`key` AS BINARY) >= $1 AND CAST(i.`key` AS BINARY) < $2 LIMIT $3;

-- name: walk
-- Rows after ($1, $2) that will have expired by $3, the first to expire first.
SELECT scope, `key`, created_at, expires_at FROM {inbox}
WHERE expires_at >= $1 AND expires_at <= $3 AND (expires_at > $1 OR id > UNHEX($2))
ORDER BY expires_at, id LIMIT $4;

-- name: delete
-- Deletes the rows {ids} that were handled by $1 and expire by $2. A row that was purged and inserted again meanwhile is
-- newer than that.
DELETE FROM {inbox} WHERE id IN ({ids}) AND created_at <= $1 AND expires_at <= $2;
SELECT ROW_COUNT();

-- name: count_expired
-- The rows that have expired by $1, counted up to $2.
SELECT COUNT(*) FROM (SELECT 1 FROM {inbox} WHERE expires_at <= $1 LIMIT $2) c;

-- name: delete_attempts
-- Deletes up to $2 counters that have expired by $1.
DELETE FROM {starts} WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2;
SELECT ROW_COUNT();

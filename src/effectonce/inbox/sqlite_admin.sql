-- The statements of operators on an inbox in SQLite, on a connection of a store's own: each is a transaction of its own.
-- `-- name: x` starts statement x.
--
-- {inbox}, {starts}  the two tables
-- {now}                the database's clock, in microseconds since the epoch
--
-- Every list walks along the index over times of expiry, and reads no more rows than its limit.


-- name: now
SELECT {now};

-- name: list
-- Rows before ($1, $2, $3), the last to expire first; none that has expired by $4.
SELECT scope, key, created_at, expires_at, NULL, fingerprint, length(result) FROM {inbox}
WHERE expires_at > $4 AND expires_at <= $1 AND (expires_at, scope, key) < ($1, $2, $3)
ORDER BY expires_at DESC, scope DESC, key DESC LIMIT $5;

-- name: list_attempts
SELECT scope, key, NULL, expires_at, reported + unreported, NULL, NULL FROM {starts}
WHERE expires_at > $4 AND expires_at <= $1 AND (expires_at, scope, key) < ($1, $2, $3)
ORDER BY expires_at DESC, scope DESC, key DESC LIMIT $5;

-- name: show
SELECT scope, key, created_at, expires_at, NULL, fingerprint, length(result), result FROM {inbox}
WHERE scope = $1 AND key = $2;

-- name: show_attempts
SELECT scope, key, NULL, expires_at, reported + unreported, NULL, NULL FROM {starts} WHERE scope = $1 AND key = $2;

-- name: scopes
-- Up to $1 scopes. Each is found by the one before it, so that the other rows of a scope are not read.
WITH RECURSIVE found (scope) AS (
    SELECT min(scope) FROM {inbox}
    UNION ALL
    SELECT (SELECT min(i.scope) FROM {inbox} i WHERE i.scope > f.scope) FROM found f WHERE f.scope IS NOT NULL
)
SELECT scope FROM found WHERE scope IS NOT NULL LIMIT $1;

-- name: find
-- Up to $4 rows of the scopes in $1, a JSON array, whose keys are from $2 up to before $3. CROSS JOIN keeps this order
-- of the two, so that each scope is one search of the primary key.
SELECT i.scope, i.key, i.created_at, i.expires_at, NULL, i.fingerprint, length(i.result)
FROM json_each($1) AS s CROSS JOIN {inbox} i
WHERE i.scope = s.value AND i.key >= $2 AND i.key < $3 LIMIT $4;

-- name: walk
-- Rows after ($1, $2, $3) that will have expired by $4, the first to expire first.
SELECT scope, key, created_at, expires_at FROM {inbox}
WHERE expires_at >= $1 AND expires_at <= $4 AND (expires_at, scope, key) > ($1, $2, $3)
ORDER BY expires_at, scope, key LIMIT $5;

-- name: delete
-- Deletes the rows in $1, a JSON array of [scope, key], that were handled by $2 and expire by $3. A row that was purged
-- and inserted again meanwhile is newer than that.
DELETE FROM {inbox} WHERE (scope, key) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each($1)
) AND created_at <= $2 AND expires_at <= $3 RETURNING 1;

-- name: count_expired
-- The rows that have expired by $1, counted up to $2.
SELECT count(*) FROM (SELECT 1 FROM {inbox} WHERE expires_at <= $1 LIMIT $2);

-- name: delete_attempts
-- Deletes up to $2 counters that have expired by $1.
DELETE FROM {starts} WHERE rowid IN (
    SELECT rowid FROM {starts} WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2
) RETURNING 1;

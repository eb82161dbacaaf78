-- The statements of operators on an inbox in PostgreSQL, on a connection of a store's own: each is a transaction of its
-- own. `-- name: x` starts statement x.
--
-- {inbox}, {starts}  the two tables
-- {now}                the database's clock, in microseconds since the epoch
--
-- Every list walks along the index over times of expiry, and reads no more rows than its limit.


-- name: now
SELECT {now};

-- name: list
-- Rows before ($1, $2, $3), the last to expire first; none that has expired by $4.
SELECT scope, key, created_at, expires_at, NULL::integer, fingerprint, octet_length(result) FROM {inbox}
WHERE expires_at > $4 AND expires_at <= $1 AND (expires_at, scope, key) < ($1, $2, $3)
ORDER BY expires_at DESC, scope DESC, key DESC LIMIT $5;

-- name: list_attempts
SELECT scope, key, NULL::bigint, expires_at, reported + unreported, NULL::bytea, NULL::integer FROM {starts}
WHERE expires_at > $4 AND expires_at <= $1 AND (expires_at, scope, key) < ($1, $2, $3)
ORDER BY expires_at DESC, scope DESC, key DESC LIMIT $5;

-- name: show
SELECT scope, key, created_at, expires_at, NULL::integer, fingerprint, octet_length(result), result FROM {inbox}
WHERE scope = $1 AND key = $2;

-- name: show_attempts
SELECT scope, key, NULL::bigint, expires_at, reported + unreported, NULL::bytea, NULL::integer FROM {starts}
WHERE scope = $1 AND key = $2;

-- name: scopes
-- Up to $1 scopes. Each is found by the one before it, so that the other rows of a scope are not read.
WITH RECURSIVE found (scope) AS (
    (SELECT min(scope) FROM {inbox})
    UNION ALL
    SELECT (SELECT min(i.scope) FROM {inbox} i WHERE i.scope > f.scope) FROM found f WHERE f.scope IS NOT NULL
)
SELECT scope FROM found WHERE scope IS NOT NULL LIMIT $1;

-- name: find
-- Up to $4 rows of the scopes in $1, a JSON array, whose keys are from $2 up to before $3. LATERAL, so that each scope
-- is one search of the primary key.
SELECT r.scope, r.key, r.created_at, r.expires_at, NULL::integer, r.fingerprint, octet_length(r.result)
FROM jsonb_array_elements_text($1::text::jsonb) AS s (scope)
CROSS JOIN LATERAL (
    SELECT i.* FROM {inbox} i WHERE i.scope = s.scope AND i.key >= $2 AND i.key < $3 ORDER BY i.scope, i.key LIMIT $4
) r LIMIT $4;

-- name: walk
-- Rows after ($1, $2, $3) that will have expired by $4, the first to expire first.
SELECT scope, key, created_at, expires_at FROM {inbox}
WHERE expires_at >= $1 AND expires_at <= $4 AND (expires_at, scope, key) > ($1, $2, $3)
ORDER BY expires_at, scope, key LIMIT $5;

-- name: delete
-- Deletes the rows in $1, a JSON array of [scope, key], that were handled by $2 and expire by $3. A row that was purged
-- and inserted again meanwhile is newer than that.
DELETE FROM {inbox} WHERE (scope, key) IN (SELECT j->>0, j->>1 FROM jsonb_array_elements($1::text::jsonb) AS j)
AND created_at <= $2 AND expires_at <= $3 RETURNING 1;

-- name: count_expired
-- The rows that have expired by $1, counted up to $2.
SELECT count(*) FROM (SELECT 1 FROM {inbox} WHERE expires_at <= $1 LIMIT $2) c;

-- name: delete_attempts
-- Deletes up to $2 counters that have expired by $1.
DELETE FROM {starts} WHERE (scope, key) IN (
    SELECT scope, key FROM {starts} WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
) RETURNING 1;

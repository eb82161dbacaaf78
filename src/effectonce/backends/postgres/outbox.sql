-- The relay's statements for PostgreSQL. `-- name: x` starts statement x; each is its own transaction, in READ COMMITTED.
--
-- {outbox}, {meta}   the tables
-- {now}              the clock when the expression is evaluated
-- {fresh}            rows after $4 that no other relay has leased, and that do not go to the queues $6
-- {row_columns}      the fields of `contracts.outbox.OutboxRow`, {entry_columns} those of `OutboxEntry`
--
-- A search for rows is ordered by the columns of the index that it shall use. It compares none of them with `=`, and
-- `seq` never by itself, so that no other index fits. The primary key would walk over published rows, and statistics of
-- an hour ago make that look like the shorter way.


-- name: fresh
state = 'pending' AND due_at <= 0 AND (due_at, seq) > (0, $4::bigint)
AND (leased_until <= (SELECT now FROM began) OR owner = $1::bytea) AND destination <> ALL ($6::text[])


-- name: taking
-- How a row is leased. Repeated by its owner, it counts no attempt.
state = 'pending', due_at = 0, owner = $1::bytea, leased_until = {now} + $2::bigint,
attempts = attempts + CASE WHEN owner IS NOT DISTINCT FROM $1::bytea THEN 0 ELSE 1 END


-- name: lease
-- $1 the owner, $2 the lease in microseconds, $3 the size of a page, $4 where it begins, $5 the most rows to take, $6
-- queues to leave out. Leases rows without regard to their lines: several relays lease side by side.
WITH began AS MATERIALIZED (
    SELECT {now} AS now
),
fresh_ones AS MATERIALIZED (
    SELECT seq FROM {outbox} WHERE {fresh}
    ORDER BY due_at, seq LIMIT $3::integer FOR UPDATE SKIP LOCKED
),
due AS MATERIALIZED (
    SELECT seq FROM {outbox} WHERE state = 'waiting' AND due_at <= (SELECT now FROM began)
      AND destination <> ALL ($6::text[])
    ORDER BY due_at, seq LIMIT $3::integer FOR UPDATE SKIP LOCKED
),
taken AS (
    UPDATE {outbox} SET {taking}
    WHERE seq = ANY (ARRAY(
        SELECT seq FROM (SELECT seq FROM fresh_ones UNION ALL SELECT seq FROM due) c ORDER BY seq LIMIT $5::integer))
    RETURNING {row_columns}
)
SELECT {row_columns} FROM taken


-- name: lease_in_order
-- Leases rows so that those of one line leave in their order, also between relays that lease at the same time: a row that
-- SKIP LOCKED passes over still blocks the others of its line.
--
-- `before` is the row before a candidate in its line, as of the start of the statement. The candidate's turn has come
-- where that is the candidate before it, or none, all the way to the front: then all rows before it are locked here, in
-- their newest version, and are leased together with it. A candidate behind a row that is being sent stays as it is. Behind
-- a waiting row it waits as long, and behind a parked one for $7, so that the next lease does not read it again.
WITH began AS MATERIALIZED (
    SELECT {now} AS now
),
fresh_ones AS MATERIALIZED (
    SELECT seq, line FROM {outbox} WHERE {fresh}
    ORDER BY due_at, seq LIMIT $3::integer FOR UPDATE SKIP LOCKED
),
due AS MATERIALIZED (
    SELECT seq, line FROM {outbox} WHERE state = 'waiting' AND due_at <= (SELECT now FROM began)
      AND destination <> ALL ($6::text[])
    ORDER BY due_at, seq LIMIT $3::integer FOR UPDATE SKIP LOCKED
),
page AS MATERIALIZED (
    SELECT c.seq, c.line, lag(c.seq) OVER (PARTITION BY c.line ORDER BY c.seq) AS neighbour,
           b.seq AS before, b.state, b.due_at
    FROM (SELECT seq, line FROM fresh_ones UNION ALL SELECT seq, line FROM due) c
    LEFT JOIN LATERAL (
        SELECT o.seq, o.state, o.due_at FROM {outbox} o
        WHERE o.line IS NOT NULL AND (o.line, o.seq) >= (c.line, 0) AND (o.line, o.seq) < (c.line, c.seq)
        ORDER BY o.line DESC, o.seq DESC LIMIT 1
    ) b ON c.line IS NOT NULL
),
judged AS MATERIALIZED (
    SELECT seq,
           line IS NULL OR NOT bool_or(before IS NOT NULL AND before IS DISTINCT FROM neighbour) OVER ahead AS is_in_turn,
           max(CASE WHEN before = neighbour THEN NULL WHEN state = 'waiting' THEN due_at
                    WHEN state = 'parked' THEN (SELECT now FROM began) + $7::bigint END) OVER ahead AS until
    FROM page
    WINDOW ahead AS (PARTITION BY line ORDER BY seq)
),
taken AS (
    UPDATE {outbox} SET {taking}
    WHERE seq = ANY (ARRAY(SELECT seq FROM judged WHERE is_in_turn ORDER BY seq LIMIT $5::integer))
    RETURNING {row_columns}
),
deferred AS (
    UPDATE {outbox} o SET state = 'waiting', due_at = j.until
    FROM judged j
    WHERE o.seq = j.seq AND NOT j.is_in_turn AND j.until IS NOT NULL
)
SELECT {row_columns} FROM taken
UNION ALL
-- One more row, by its negative `attempts`: where the next page begins; -2 says that there may be more to read.
SELECT CASE WHEN f.filled THEN (SELECT max(seq) FROM fresh_ones) ELSE 0 END,
       '', '', '', NULL, '', '', ''::bytea, '', NULL, '', NULL,
       CASE WHEN f.filled OR (SELECT count(*) FROM due) = $3::integer THEN -2 ELSE -1 END
FROM (SELECT (SELECT count(*) FROM fresh_ones) = $3::integer AS filled) f


-- name: settle
-- Rows leased by $1: those in $2 are published, and stay for $3 or (0) are deleted. $4 to $8 are the others, and for each
-- the state that it goes to, how long it waits, the attempts to refund, and its error.
WITH kept AS (
    UPDATE {outbox} SET
        state = 'published', due_at = {now} + $3::bigint, published_at = {now}, line = NULL, leased_until = 0,
        error = NULL
    WHERE seq = ANY ($2::bigint[]) AND owner = $1::bytea AND state = 'pending' AND $3::bigint > 0
    RETURNING 1
),
deleted AS (
    DELETE FROM {outbox}
    WHERE seq = ANY ($2::bigint[]) AND owner = $1::bytea AND state = 'pending' AND $3::bigint = 0
    RETURNING 1
),
others AS (
    UPDATE {outbox} o SET
        state = i.state,
        due_at = CASE i.state WHEN 'waiting' THEN {now} + i.span ELSE 0 END,
        leased_until = 0,
        owner = NULL,
        attempts = o.attempts - i.refund,
        error = coalesce(i.error, o.error)
    FROM unnest($4::bigint[], $5::text[], $6::bigint[], $7::integer[], $8::text[])
        AS i (seq, state, span, refund, error)
    WHERE o.seq = i.seq AND o.owner = $1::bytea AND o.state = 'pending'
    RETURNING 1
)
SELECT (SELECT count(*) FROM kept) + (SELECT count(*) FROM deleted) + (SELECT count(*) FROM others)


-- name: probe
-- Fails where the table lacks a column that this release reads.
SELECT {row_columns}, line, created_at, state, due_at, leased_until, owner, error, published_at FROM {outbox} LIMIT 0


-- name: denied
-- The privileges that a relay needs and this user lacks; NULL: none.
SELECT string_agg(privilege || ' on ' || name, ', ') AS lacking
FROM (VALUES ('{outbox}', 'UPDATE'), ('{outbox}', 'DELETE'), ('{meta}', 'INSERT'), ('{meta}', 'UPDATE'))
     AS needed (name, privilege)
WHERE NOT has_table_privilege(name, privilege)


-- name: unpark
-- Sends parked rows again: up to $3 of all, or those in $1. With $2 they are deleted instead. The rows that wait behind
-- them are due at once: up to $4, the others come due by themselves.
WITH parked AS MATERIALIZED (
    SELECT seq, line FROM {outbox}
    WHERE state = 'parked' AND ($1::bigint[] IS NULL OR seq = ANY ($1::bigint[]))
    ORDER BY seq LIMIT $3::integer
    FOR UPDATE
),
freed AS (
    UPDATE {outbox} SET state = 'pending', due_at = 0, attempts = 0, owner = NULL, leased_until = 0
    WHERE seq = ANY (ARRAY(SELECT seq FROM parked)) AND NOT $2::boolean
    RETURNING 1
),
dropped AS (
    DELETE FROM {outbox} WHERE seq = ANY (ARRAY(SELECT seq FROM parked)) AND $2::boolean
    RETURNING 1
),
behind AS (
    UPDATE {outbox} SET due_at = {now}
    WHERE seq = ANY (ARRAY(
        SELECT seq FROM {outbox} WHERE state = 'waiting' AND line = ANY (ARRAY(SELECT line FROM parked))
        ORDER BY seq LIMIT $4::integer))
)
SELECT (SELECT count(*) FROM freed) + (SELECT count(*) FROM dropped)


-- name: list
SELECT {entry_columns}
FROM {outbox}
WHERE state = $1::text AND (due_at, seq) > ($2::bigint, $3::bigint)
ORDER BY due_at, seq LIMIT $4::integer


-- name: find
-- Rows of the $3 newest whose key, message id or ordering key is from $1 up to before $2.
SELECT {entry_columns}
FROM (SELECT * FROM {outbox} ORDER BY seq DESC LIMIT $3::integer) o
WHERE (id >= $1::text AND id < $2::text) OR (message_id >= $1::text AND message_id < $2::text)
   OR (ordering_key >= $1::text AND ordering_key < $2::text)
ORDER BY seq DESC LIMIT $4::integer


-- name: count_up_to
SELECT count(*) FROM (SELECT 1 FROM {outbox} LIMIT $1::integer) c


-- name: stats
SELECT s.state, o.count, o.oldest
FROM unnest(ARRAY['pending', 'waiting', 'parked', 'published']) AS s (state)
CROSS JOIN LATERAL (
    SELECT count(*), min(created_at) AS oldest
    FROM (SELECT created_at FROM {outbox} WHERE state = s.state ORDER BY due_at, seq LIMIT $1::integer) c
) o
UNION ALL
SELECT 'cleaned', 0, value FROM {meta} WHERE name = $2::text


-- name: clean
-- Reads one row more than the limit, which says whether there is more to do.
WITH old AS MATERIALIZED (
    SELECT seq FROM {outbox} WHERE state = 'published' AND due_at <= (SELECT {now})
    ORDER BY due_at, seq LIMIT $1::integer + 1
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM {outbox} WHERE seq = ANY (ARRAY(SELECT seq FROM old LIMIT $1::integer))
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM old) > $1::integer


-- name: cleaned
INSERT INTO {meta} (name, value) VALUES ($1::text, {now}) ON CONFLICT (name) DO UPDATE SET value = excluded.value


-- name: has_inbox
SELECT to_regclass($1::text) IS NOT NULL

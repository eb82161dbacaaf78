-- What effectonce asks of PostgreSQL. `-- name: x` starts statement x; each is its own transaction.
--
-- {records}, {meta}   the two tables
-- {channel}           where settlements that someone waits for are announced
-- {now}               the clock when the expression is evaluated. now() is when the transaction began, and after
--                     a wait for a lock a short lease counted from it would be over already.
-- {announced}         true; on the way it tells those who wait for the record `l` that it was settled
-- {is_locked}         the row `r` is the one that was locked as `l`: the same place, and the same identity, since each
--                     partition of a partitioned table has the same places. IS NOT DISTINCT FROM cannot be joined
--                     on, so that the way to the row stays its place.
-- {place}             where the record is that the operation `i` is about; {is_placed}: the row `r` is there, and claimed
--                     as the operation `l` says. Whatever has changed it since is at another place.
-- {verdict}           what the record in `r` means to an operation: the expression below
--
-- All run in READ COMMITTED. In there a statement reads as of its start, but locks and changes the newest
-- version of a row. Hence, in all of them:
--   * Rows are locked one by one, in the order in which the batch is sorted (LATERAL ... FOR UPDATE can only be
--     a nested loop), so that two batches never wait for each other in a circle.
--   * A locked row is changed by its place (ctid): a join by key became a sequential scan on a young table. A
--     row that a rival changed after this statement began is locked and judged in its newest version, but the
--     UPDATE cannot see that one. Such an operation gets no answer, and is asked again.


-- name: claim_input
-- Not a statement: what `claim` and `claim_noted` make of their `input`. It stands before all that it refers to.
fresh AS (
    {granted}
    FROM (SELECT i.*, {now} AS now FROM input i) i
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING scope, key, token, note
),
seen AS MATERIALIZED (
    SELECT r.*, {verdict} AS verdict
    FROM (
        SELECT i.*, {now} AS now, r.state, r.token, r.attempts, r.generation, r.lease_until, r.expires_at,
               r.doubt_on_lapse, r.lapsed, r.awaited, r.owner, r.fingerprint, r.result, r.error, r.note
        FROM input i
        CROSS JOIN LATERAL (
            SELECT * FROM {records} r WHERE r.scope = i.scope AND r.key = i.key LIMIT 1
        ) r
        WHERE (SELECT count(*) FROM fresh) < cardinality($1)
          AND NOT EXISTS (SELECT FROM fresh f WHERE f.scope = i.scope AND f.key = i.key)
    ) r
),
locked AS MATERIALIZED (
    SELECT v.*, CASE
        WHEN verdict IN ('free', 'lapsed') AND max_attempts > 0 AND attempts >= max_attempts THEN 'exhausted'
        WHEN verdict IN ('expired', 'free', 'lapsed') THEN 'claimed'
        WHEN verdict = 'lapsed_in_doubt' THEN 'in_doubt'
        WHEN verdict = 'in_progress' AND waiting AND NOT awaited THEN 'in_progress'
        END AS change
    FROM (
        SELECT r.*, {verdict} AS verdict
        FROM (
            SELECT s.n, s.scope, s.key, s.claimant, s.lease, s.retention, s.max_attempts, s.doubts, s.waiting,
                   s.fingerprints, s.brought, {now} AS now, r.*
            FROM seen s
            CROSS JOIN LATERAL (
                SELECT r.ctid AS place, r.state, r.token, r.attempts, r.generation, r.lease_until, r.expires_at,
                       r.doubt_on_lapse, r.lapsed, r.awaited, r.owner, r.fingerprint, r.result, r.error, r.note
                FROM {records} r WHERE r.scope = s.scope AND r.key = s.key FOR UPDATE
            ) r
            WHERE s.verdict IN ('expired', 'free', 'lapsed', 'lapsed_in_doubt')
               OR (s.verdict = 'in_progress' AND s.waiting AND NOT s.awaited)
        ) r
    ) v
),
changed AS (
    UPDATE {records} r SET
        state = CASE l.change WHEN 'exhausted' THEN 'failed' WHEN 'in_progress' THEN r.state ELSE l.change END,
        attention = CASE l.change
            WHEN 'claimed' THEN CASE
                WHEN l.doubts THEN 'lapse'
                WHEN l.brought IS NOT NULL OR (r.note IS NOT NULL AND l.verdict <> 'expired') THEN 'noted' END
            WHEN 'exhausted' THEN 'failed' WHEN 'in_doubt' THEN 'in_doubt' ELSE r.attention END,
        token = CASE l.change WHEN 'claimed' THEN greatest(r.token + 1, l.now) ELSE r.token END,
        attempts = CASE WHEN l.change <> 'claimed' THEN r.attempts WHEN l.verdict = 'expired' THEN 1
                        ELSE r.attempts + 1 END,
        generation = CASE l.verdict WHEN 'expired' THEN 0 ELSE r.generation END,
        created_at = CASE l.verdict WHEN 'expired' THEN l.now ELSE r.created_at END,
        changed_at = CASE l.change WHEN 'in_progress' THEN r.changed_at ELSE l.now END,
        lease_until = CASE l.change WHEN 'claimed' THEN l.now + l.lease ELSE r.lease_until END,
        expires_at = CASE l.change
            WHEN 'claimed' THEN CASE WHEN NOT l.doubts THEN l.now + l.lease + l.retention END
            WHEN 'exhausted' THEN l.now + l.retention ELSE r.expires_at END,
        expires_minute = CASE
            WHEN l.change = 'exhausted' OR (l.change = 'claimed' AND NOT l.doubts)
            THEN (l.now + l.retention) / 60000000
            WHEN l.change <> 'claimed' THEN r.expires_minute END,
        doubt_on_lapse = CASE l.change WHEN 'claimed' THEN l.doubts ELSE r.doubt_on_lapse END,
        lapsed = CASE l.change WHEN 'claimed' THEN l.verdict = 'lapsed' ELSE r.lapsed END,
        awaited = r.awaited OR l.change = 'in_progress',
        owner = CASE l.change WHEN 'claimed' THEN l.claimant ELSE r.owner END,
        fingerprint = CASE
            WHEN l.change <> 'claimed' THEN r.fingerprint
            WHEN l.fingerprints <> '' THEN substring(l.fingerprints FROM 1 FOR 33)
            WHEN l.verdict <> 'expired' THEN r.fingerprint END,
        result = NULL,
        error = CASE l.change WHEN 'exhausted' THEN {exhausted}::bytea END,
        note = CASE WHEN l.change <> 'claimed' THEN r.note WHEN l.verdict = 'expired' THEN l.brought
                    ELSE coalesce(r.note, l.brought) END
    FROM locked l
    WHERE {is_locked} AND l.change IS NOT NULL
    RETURNING l.n, l.change, r.token, r.attempts, r.generation, r.lapsed, r.lease_until - l.now AS remains, r.error,
              r.note
)
SELECT i.n, 'claimed' AS answer, f.token, 1 AS attempts, 0 AS generation, false AS lapsed, NULL::bigint AS remains,
       NULL::bytea AS result, NULL::bytea AS error, f.note
FROM fresh f JOIN input i ON i.scope = f.scope AND i.key = f.key
UNION ALL
SELECT n, verdict, token, attempts, generation, lapsed, lease_until - now, result, error, note
FROM seen
WHERE verdict IN ('mismatch', 'claimed', 'done', 'failed', 'in_doubt')
   OR (verdict = 'in_progress' AND (awaited OR NOT waiting))
UNION ALL
SELECT n, verdict, token, attempts, generation, lapsed, lease_until - now, result, error, note
FROM locked
WHERE change IS NULL
UNION ALL
SELECT n, change, token, attempts, generation, lapsed, remains, NULL, error, note
FROM changed


-- name: granted
-- Not a statement: the row of a claim that meets no record.
INSERT INTO {records} (scope, key, state, attention, token, attempts, generation, created_at, changed_at,
                       lease_until, expires_at, expires_minute, doubt_on_lapse, owner, fingerprint, note)
SELECT scope, key, 'claimed', CASE WHEN doubts THEN 'lapse' WHEN brought IS NOT NULL THEN 'noted' END, now, 1, 0,
       now, now, now + lease,
       CASE WHEN NOT doubts THEN now + lease + retention END,
       CASE WHEN NOT doubts THEN (now + retention) / 60000000 END,
       doubts, claimant, nullif(substring(fingerprints FROM 1 FOR 33), ''), brought


-- name: verdict
-- An expression, not a statement. `r` has the columns of the record (NULL: there is none), and `now`,
-- `claimant` and `fingerprints` of the operation. These are the steps of `contracts.Port.run`.
CASE
    WHEN r.state IS NULL THEN 'absent'
    WHEN r.expires_at <= r.now THEN 'expired'
    WHEN r.fingerprints <> '' AND (position(r.fingerprint IN r.fingerprints) - 1) % 33 <> 0 THEN 'mismatch'
    WHEN r.state <> 'claimed' THEN r.state
    WHEN r.owner = r.claimant THEN 'claimed'
    WHEN r.now < r.lease_until THEN 'in_progress'
    WHEN r.doubt_on_lapse THEN 'lapsed_in_doubt'
    ELSE 'lapsed'
END


-- name: claim
-- Absent records are inserted first: that is nearly all of them, and then `seen` and all after it stay empty.
-- Only the others are looked up, and answered without a write where they are finished, in doubt or in progress.
-- Inserts come before locks in every claim: whoever waits for an insert holds no lock that others wait for.
-- No answer: lost to an insert that cannot be seen yet, or the record was deleted or changed meanwhile.
WITH input AS MATERIALIZED (
    SELECT i.*, NULL::bytea AS brought
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::integer[], $7::boolean[],
                $8::boolean[], $9::bytea[])
        WITH ORDINALITY
        AS i (scope, key, claimant, lease, retention, max_attempts, doubts, waiting, fingerprints, n)
),
{claim_input}


-- name: claim_noted
-- The same for claims of which some bring a note.
WITH input AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::integer[], $7::boolean[],
                $8::boolean[], $9::bytea[], $10::bytea[])
        WITH ORDINALITY
        AS i (scope, key, claimant, lease, retention, max_attempts, doubts, waiting, fingerprints, brought, n)
),
{claim_input}


-- name: claim_fresh
-- As `fresh` in `claim`, which costs the server half as much again before it has done anything. No answer: ask `claim`.
{granted}
FROM (
    SELECT *, {now} AS now
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::boolean[], $7::bytea[], $8::bytea[])
        AS i (scope, key, claimant, lease, retention, doubts, fingerprints, brought)
) i
ON CONFLICT (scope, key) DO NOTHING
RETURNING scope, key, owner, token


-- name: claim_alone
-- One claim that nobody waits for, by itself: what a program sends that does one thing at a time. It is as `claim_fresh`
-- for one. No answer: ask `seen_alone`.
INSERT INTO {records} (scope, key, state, attention, token, attempts, generation, created_at, changed_at,
                       lease_until, expires_at, expires_minute, doubt_on_lapse, owner, fingerprint, note)
SELECT $1::text, $2::text, 'claimed', CASE WHEN $6::boolean THEN 'lapse' WHEN $8::bytea IS NOT NULL THEN 'noted' END,
       now, 1, 0, now, now, now + $4::bigint,
       CASE WHEN NOT $6::boolean THEN now + $4::bigint + $5::bigint END,
       CASE WHEN NOT $6::boolean THEN (now + $5::bigint) / 60000000 END,
       $6::boolean, $3::bytea, nullif(substring($7::bytea FROM 1 FOR 33), ''), $8::bytea
FROM (SELECT {now} AS now) n
ON CONFLICT (scope, key) DO NOTHING
RETURNING token


-- name: seen_alone
-- What the record is that `claim_alone` has met, as `seen` in `claim`. Where that calls for a change: ask `claim`.
SELECT 1::bigint AS n, {verdict} AS answer, r.token, r.attempts, r.generation, r.lapsed,
       r.lease_until - r.now AS remains, r.result, r.error, r.note
FROM (
    SELECT r.*, $3::bytea AS claimant, $4::bytea AS fingerprints, {now} AS now
    FROM {records} r WHERE r.scope = $1::text AND r.key = $2::text
) r


-- name: look
-- What a claim would be answered, without a claim. Every operation gets its row.
SELECT r.n, {verdict} AS answer, r.token, r.attempts, r.generation, false AS lapsed,
       r.lease_until - r.now AS remains, r.result, r.error, NULL::bytea AS note
FROM (
    SELECT i.n, ''::bytea AS claimant, i.fingerprints, {now} AS now, r.state, r.token, r.attempts, r.generation,
           r.lease_until, r.expires_at, r.doubt_on_lapse, r.owner, r.fingerprint, r.result, r.error
    FROM unnest($1::text[], $2::text[], $3::bytea[]) WITH ORDINALITY AS i (scope, key, fingerprints, n)
    LEFT JOIN LATERAL (SELECT * FROM {records} r WHERE r.scope = i.scope AND r.key = i.key LIMIT 1) r ON true
) r


-- name: settle
-- Where it is claimed by this owner with this token (done: also in doubt under them), end it; or, with state
-- `claimed`, only write its note. An operation without a row is refused; `applied` is NULL where it is to be asked again.
WITH locked AS MATERIALIZED (
    SELECT i.*, r.place, r.awaited, {now} AS now,
           r.was = 'claimed' OR (r.was = 'in_doubt' AND i.state = 'done') AS open, r.was, r.expires_at
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::text[], $6::bigint[], $7::bytea[], $8::bytea[],
                $9::boolean[], $10::bytea[])
        WITH ORDINALITY AS i (scope, key, owner, token, state, retention, result, error, refund, note, n)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS place, r.state AS was, r.awaited, r.expires_at
        FROM {records} r
        WHERE r.scope = i.scope AND r.key = i.key AND r.owner = i.owner AND r.token = i.token
        FOR UPDATE
    ) r
),
changed AS (
    UPDATE {records} r SET
        {settled}
    FROM locked l
    WHERE {is_locked} AND l.open AND (l.expires_at IS NULL OR l.expires_at > l.now)
    RETURNING l.n, l.scope, l.key, l.awaited AND l.state <> 'claimed' AS awaited
)
SELECT n, {announced} AS applied FROM changed l
UNION ALL
SELECT n, CASE WHEN NOT open THEN was = state END
FROM locked l
WHERE (expires_at IS NULL OR expires_at > now) AND (NOT open OR NOT EXISTS (SELECT FROM changed c WHERE c.n = l.n))


-- name: settle_claimed
-- As `settle`, of records that are claimed as they should be and that nobody waits for: nearly all. A record is found by
-- its key and changed by its place, without a lock before. No answer: ask `settle`, which also says why.
UPDATE {records} r SET
    {settled}
FROM (
    SELECT i.*, {now} AS now, {place} AS place
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::text[], $6::bigint[], $7::bytea[], $8::bytea[],
                $9::boolean[], $10::bytea[])
        WITH ORDINALITY AS i (scope, key, owner, token, state, retention, result, error, refund, note, n)
) l
WHERE {is_placed} AND (l.state = 'claimed' OR NOT r.awaited)
RETURNING l.n


-- name: note_claimed
-- The same where all are notes.
UPDATE {records} r SET note = l.note, changed_at = l.now, attention = coalesce(r.attention, 'noted')
FROM (
    SELECT i.*, {now} AS now, {place} AS place
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::bytea[])
        WITH ORDINALITY AS i (scope, key, owner, token, note, n)
) l
WHERE {is_placed}
RETURNING l.n


-- name: settled
-- Not a statement: what the settlement `l` makes of its record `r`; with state `claimed` it is a note.
state = l.state,
attention = CASE l.state WHEN 'done' THEN NULL WHEN 'claimed' THEN coalesce(r.attention, 'noted') ELSE l.state END,
attempts = r.attempts - l.refund::integer,
changed_at = l.now,
expires_at = CASE l.state WHEN 'claimed' THEN r.expires_at WHEN 'in_doubt' THEN NULL ELSE l.now + l.retention END,
expires_minute = CASE l.state WHEN 'claimed' THEN r.expires_minute WHEN 'in_doubt' THEN NULL
                              ELSE (l.now + l.retention) / 60000000 END,
awaited = r.awaited AND l.state = 'claimed',
result = l.result,
error = l.error,
note = coalesce(l.note, r.note)


-- name: settle_alone
-- One settlement by itself, of a record that nobody waits for. What a rival changes meanwhile is judged again in its
-- newest version. No answer: ask `settle`, which also says why.
UPDATE {records} SET
    state = $5::text, attention = nullif($5::text, 'done'), attempts = attempts - $9::boolean::integer,
    changed_at = {now},
    expires_at = CASE WHEN $5::text <> 'in_doubt' THEN {now} + $6::bigint END,
    expires_minute = CASE WHEN $5::text <> 'in_doubt' THEN ({now} + $6::bigint) / 60000000 END,
    result = $7::bytea, error = $8::bytea, note = coalesce($10::bytea, note)
WHERE scope = $1::text AND key = $2::text AND owner = $3::bytea AND token = $4::bigint
  AND state = 'claimed' AND NOT awaited AND (expires_at IS NULL OR expires_at > {now})
RETURNING true


-- name: complete
-- A settlement to done that the caller's own transaction makes.
UPDATE {records} SET
    state = 'done', attention = NULL, changed_at = {now}, expires_at = {now} + $5::bigint,
    expires_minute = ({now} + $5::bigint) / 60000000, awaited = false, result = $6::bytea, error = NULL
WHERE scope = $1::text AND key = $2::text AND owner = $3::bytea AND token = $4::bigint
  AND state IN ('claimed', 'in_doubt') AND (expires_at IS NULL OR expires_at > {now})
RETURNING 1


-- name: note_alone
-- One note by itself, as `settle_alone`.
UPDATE {records} SET note = $5::bytea, changed_at = {now}, attention = coalesce(attention, 'noted')
WHERE scope = $1::text AND key = $2::text AND owner = $3::bytea AND token = $4::bigint
  AND state = 'claimed' AND (expires_at IS NULL OR expires_at > {now})
RETURNING true


-- name: renew
-- expires_minute stays: it may be early, never late.
WITH locked AS MATERIALIZED (
    SELECT i.*, r.place, r.expires_at, {now} AS now
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[])
        WITH ORDINALITY AS i (scope, key, owner, token, lease, retention, n)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS place, r.expires_at
        FROM {records} r
        WHERE r.scope = i.scope AND r.key = i.key AND r.owner = i.owner AND r.token = i.token AND r.state = 'claimed'
        FOR UPDATE
    ) r
),
changed AS (
    UPDATE {records} r SET
        lease_until = l.now + l.lease,
        expires_at = CASE WHEN NOT r.doubt_on_lapse THEN l.now + l.lease + l.retention END
    FROM locked l
    WHERE {is_locked} AND (l.expires_at IS NULL OR l.expires_at > l.now)
    RETURNING l.n
)
SELECT n, true AS applied FROM changed
UNION ALL
SELECT n, NULL
FROM locked l
WHERE (expires_at IS NULL OR expires_at > now) AND NOT EXISTS (SELECT FROM changed c WHERE c.n = l.n)


-- name: remember
-- As `claim`, with one end: done. No answer: ask again.
WITH input AS MATERIALIZED (
    SELECT i.*, ''::bytea AS claimant
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::bytea[])
        WITH ORDINALITY AS i (scope, key, retention, fingerprints, memory, n)
),
fresh AS (
    INSERT INTO {records} (scope, key, state, token, attempts, generation, created_at, changed_at,
                           expires_at, expires_minute, doubt_on_lapse, owner, fingerprint, result)
    SELECT scope, key, 'done', now, 0, 0, now, now, now + retention, (now + retention) / 60000000, false, '',
           nullif(substring(fingerprints FROM 1 FOR 33), ''), memory
    FROM (SELECT i.*, {now} AS now FROM input i) i
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING scope, key
),
seen AS MATERIALIZED (
    SELECT r.*, {verdict} AS verdict
    FROM (
        SELECT i.*, {now} AS now, r.state, r.lease_until, r.expires_at, r.doubt_on_lapse, r.owner, r.fingerprint
        FROM input i
        CROSS JOIN LATERAL (
            SELECT * FROM {records} r WHERE r.scope = i.scope AND r.key = i.key LIMIT 1
        ) r
        WHERE (SELECT count(*) FROM fresh) < cardinality($1)
          AND NOT EXISTS (SELECT FROM fresh f WHERE f.scope = i.scope AND f.key = i.key)
    ) r
),
locked AS MATERIALIZED (
    SELECT r.*, {verdict} AS verdict
    FROM (
        SELECT s.n, s.scope, s.key, s.claimant, s.retention, s.fingerprints, s.memory, {now} AS now, r.*
        FROM seen s
        CROSS JOIN LATERAL (
            SELECT r.ctid AS place, r.state, r.lease_until, r.expires_at, r.doubt_on_lapse, r.awaited, r.owner,
                   r.fingerprint
            FROM {records} r WHERE r.scope = s.scope AND r.key = s.key FOR UPDATE
        ) r
        WHERE s.verdict IN ('expired', 'free', 'lapsed')
    ) r
),
changed AS (
    UPDATE {records} r SET
        state = 'done',
        attention = NULL,
        token = greatest(r.token + 1, l.now),
        attempts = CASE l.verdict WHEN 'expired' THEN 0 ELSE r.attempts END,
        generation = CASE l.verdict WHEN 'expired' THEN 0 ELSE r.generation END,
        created_at = CASE l.verdict WHEN 'expired' THEN l.now ELSE r.created_at END,
        changed_at = l.now,
        lease_until = NULL,
        expires_at = l.now + l.retention,
        expires_minute = (l.now + l.retention) / 60000000,
        doubt_on_lapse = false,
        awaited = false,
        owner = '',
        fingerprint = nullif(substring(l.fingerprints FROM 1 FOR 33), ''),
        result = l.memory,
        error = NULL,
        note = NULL
    FROM locked l
    WHERE {is_locked} AND l.verdict IN ('expired', 'free', 'lapsed')
    RETURNING l.n, l.scope, l.key, l.awaited
)
SELECT i.n, true AS applied
FROM fresh f JOIN input i ON i.scope = f.scope AND i.key = f.key
UNION ALL
SELECT n, verdict = 'done' FROM seen WHERE verdict NOT IN ('expired', 'free', 'lapsed')
UNION ALL
SELECT n, verdict = 'done' FROM locked WHERE verdict NOT IN ('expired', 'free', 'lapsed')
UNION ALL
SELECT n, {announced} FROM changed l


-- name: get
SELECT r.scope, r.key, r.state, r.token, r.attempts, r.generation, r.doubt_on_lapse, r.created_at, r.changed_at,
       r.lease_until, r.expires_at, r.owner, r.fingerprint, r.result, r.error, r.note
FROM {records} r
WHERE r.scope = $1::text AND r.key = $2::text AND (r.expires_at IS NULL OR r.expires_at > {now})


-- name: list
-- The next $5 records after ($3, $4) by primary key, of the scope $1 or (NULL) of all. Those that have expired, or
-- are in another state than $2 (NULL: any), come without their values: they are work done, not results.
SELECT r.scope, r.key, r.state, r.token, r.attempts, r.generation, r.doubt_on_lapse, r.created_at, r.changed_at,
       r.lease_until, r.expires_at, r.owner, r.fingerprint, CASE WHEN r.wanted THEN r.result END,
       CASE WHEN r.wanted THEN r.error END, CASE WHEN r.wanted THEN r.note END, r.wanted
FROM (
    SELECT r.*, (r.expires_at IS NULL OR r.expires_at > {now}) AND ($2::text IS NULL OR r.state = $2) AS wanted
    FROM {records} r
    WHERE (r.scope, r.key) > ($3::text, $4::text) AND ($1::text IS NULL OR r.scope = $1)
    ORDER BY r.scope, r.key
    LIMIT $5::integer
) r
ORDER BY r.scope, r.key


-- name: list_attention
-- The same for a state that is found by `attention`.
SELECT r.scope, r.key, r.state, r.token, r.attempts, r.generation, r.doubt_on_lapse, r.created_at, r.changed_at,
       r.lease_until, r.expires_at, r.owner, r.fingerprint, CASE WHEN r.wanted THEN r.result END,
       CASE WHEN r.wanted THEN r.error END, CASE WHEN r.wanted THEN r.note END, r.wanted
FROM (
    SELECT r.*, (r.expires_at IS NULL OR r.expires_at > {now}) AS wanted
    FROM {records} r
    WHERE r.attention = $2::text AND (r.scope, r.key) > ($3::text, $4::text) AND ($1::text IS NULL OR r.scope = $1)
    ORDER BY r.scope, r.key
    LIMIT $5::integer
) r
ORDER BY r.scope, r.key


-- name: list_unfinished
-- The same for claimed and free records with a note: three walks through `attention`, merged.
SELECT r.scope, r.key, r.state, r.token, r.attempts, r.generation, r.doubt_on_lapse, r.created_at, r.changed_at,
       r.lease_until, r.expires_at, r.owner, r.fingerprint, CASE WHEN r.wanted THEN r.result END,
       CASE WHEN r.wanted THEN r.error END, CASE WHEN r.wanted THEN r.note END, r.wanted
FROM (
    SELECT r.*, r.note IS NOT NULL AND (r.expires_at IS NULL OR r.expires_at > {now}) AS wanted
    FROM unnest(ARRAY['free', 'lapse', 'noted']) AS a (attention)
    CROSS JOIN LATERAL (
        SELECT *
        FROM {records} r
        WHERE r.attention = a.attention AND (r.scope, r.key) > ($3::text, $4::text)
          AND ($1::text IS NULL OR r.scope = $1) AND ($2::text IS NULL OR r.state = $2)
        ORDER BY r.scope, r.key
        LIMIT $5::integer
    ) r
    ORDER BY r.scope, r.key
    LIMIT $5::integer
) r
ORDER BY r.scope, r.key


-- name: stats
-- How many there are of each state, and the least time of change. At most $1 of those that `attention` finds; the
-- others have no index (see the schema), and are counted among the $2 records that expire last. `scanned` is how
-- many of those there were: where it is $2, others were left out.
WITH scanned AS MATERIALIZED (
    SELECT state, attention, expires_at
    FROM {records}
    WHERE expires_minute IS NOT NULL
    ORDER BY expires_minute DESC
    LIMIT $2::integer
)
SELECT state, count(*), NULL::bigint
FROM scanned
WHERE attention IS NULL AND expires_at > {now}
GROUP BY state
UNION ALL
SELECT 'scanned', count(*), NULL FROM scanned
UNION ALL
SELECT CASE WHEN s.attention IN ('lapse', 'noted') THEN 'claimed' ELSE s.attention END, count(r.changed_at),
       min(r.changed_at)
FROM unnest(ARRAY['lapse', 'noted', 'free', 'failed', 'in_doubt']) AS s (attention)
LEFT JOIN LATERAL (
    SELECT changed_at
    FROM {records} r
    WHERE r.attention = s.attention AND (r.expires_at IS NULL OR r.expires_at > {now})
    LIMIT $1::integer
) r ON true
GROUP BY s.attention
UNION ALL
SELECT 'swept_at', NULL, value FROM {meta} WHERE name = 'swept_at'


-- name: forget
WITH locked AS MATERIALIZED (
    SELECT r.*, {now} AS now
    FROM (
        SELECT ctid AS place, scope, key, awaited, expires_at
        FROM {records} WHERE scope = $1::text AND key = $2::text FOR UPDATE
    ) r
),
changed AS (
    UPDATE {records} r SET
        state = 'free',
        attention = 'free',
        token = greatest(r.token + 1, l.now),
        attempts = 0,
        generation = r.generation + 1,
        changed_at = l.now,
        expires_at = l.now + $3::bigint,
        expires_minute = (l.now + $3::bigint) / 60000000,
        awaited = false,
        owner = '',
        result = NULL,
        error = NULL,
        fingerprint = NULL,
        note = NULL
    FROM locked l
    WHERE {is_locked} AND (l.expires_at IS NULL OR l.expires_at > l.now)
    RETURNING l.scope, l.key, l.awaited
)
SELECT {announced} AS applied FROM changed l
UNION ALL
SELECT NULL FROM locked WHERE (expires_at IS NULL OR expires_at > now) AND NOT EXISTS (SELECT FROM changed)


-- name: resolve
-- $3 is what became of it: done, failed or free.
WITH locked AS MATERIALIZED (
    SELECT r.*, {now} AS now
    FROM (
        SELECT ctid AS place, scope, key, state, awaited, lease_until, doubt_on_lapse
        FROM {records} WHERE scope = $1::text AND key = $2::text FOR UPDATE
    ) r
),
doubted AS (
    SELECT * FROM locked
    WHERE state = 'in_doubt' OR (state = 'claimed' AND doubt_on_lapse AND lease_until <= now)
),
changed AS (
    UPDATE {records} r SET
        state = $3::text,
        attention = nullif($3::text, 'done'),
        token = greatest(r.token + 1, l.now),
        attempts = CASE $3::text WHEN 'free' THEN 0 ELSE r.attempts END,
        generation = CASE $3::text WHEN 'free' THEN r.generation + 1 ELSE r.generation END,
        changed_at = l.now,
        expires_at = l.now + $4::bigint,
        expires_minute = (l.now + $4::bigint) / 60000000,
        awaited = false,
        owner = '',
        result = $5::bytea,
        error = $6::bytea
    FROM doubted l
    WHERE {is_locked}
    RETURNING l.scope, l.key, l.awaited
)
SELECT {announced} AS applied FROM changed l
UNION ALL
SELECT NULL FROM doubted WHERE NOT EXISTS (SELECT FROM changed)


-- name: sweep
-- Rows that others have locked are left to the next sweep: someone is using them. One more than the limit is looked
-- for, of each kind: that one says whether there is more to do.
WITH began AS MATERIALIZED (
    SELECT {now} AS now
),
expired AS MATERIALIZED (
    SELECT ctid AS place, scope, key
    FROM {records}
    WHERE expires_minute <= (SELECT now / 60000000 FROM began) AND expires_at <= (SELECT now FROM began)
    ORDER BY expires_minute
    LIMIT $1::integer + 1
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM {records} r
    USING (SELECT * FROM expired LIMIT $1::integer) l
    WHERE {is_locked}
    RETURNING 1
),
lapsed AS MATERIALIZED (
    SELECT ctid AS place, scope, key, awaited
    FROM {records}
    WHERE attention = 'lapse' AND lease_until <= (SELECT now FROM began)
    LIMIT $1::integer + 1
    FOR UPDATE SKIP LOCKED
),
moved AS (
    UPDATE {records} r SET
        state = 'in_doubt',
        attention = 'in_doubt',
        changed_at = (SELECT now FROM began),
        awaited = false
    FROM (SELECT * FROM lapsed LIMIT $1::integer) l
    WHERE {is_locked}
    RETURNING l.scope, l.key, l.awaited
),
rest AS (
    SELECT (SELECT count(*) FROM expired) > $1::integer OR (SELECT count(*) FROM lapsed) > $1::integer AS more
),
done AS (
    UPDATE {meta} m SET value = (SELECT now FROM began)
    FROM (SELECT name FROM {meta} WHERE name = 'swept_at' FOR UPDATE SKIP LOCKED) s
    WHERE m.name = s.name AND NOT (SELECT more FROM rest)
)
SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM moved l WHERE {announced}), (SELECT more FROM rest)


-- name: now
SELECT {now}


-- name: version
SELECT max(value) FILTER (WHERE name = 'schema'), max(value) FILTER (WHERE name = 'oldest') FROM {meta}


-- name: durability
-- Whether nothing may be written, or commits may be lost: to a power cut, to a crash, to the emptying of tables that are
-- not in the log.
SELECT current_setting('transaction_read_only') = 'on',
       current_setting('fsync') = 'off', current_setting('synchronous_commit') = 'off',
       (SELECT string_agg(oid::regclass::text, ', ')
        FROM pg_class
        WHERE relpersistence = 'u'
          AND oid IN (SELECT to_regclass('{records}') UNION ALL SELECT to_regclass('{meta}')
                      UNION ALL SELECT relid FROM pg_partition_tree(to_regclass('{records}'))))


-- name: denied
-- What this user lacks of the privileges that claims, settlements and sweeps need; NULL: nothing. Of the whole
-- table: to grant every column of it is not enough for a claim.
SELECT string_agg(privilege || ' on ' || name, ', ')
FROM (VALUES ('{records}', 'SELECT'), ('{records}', 'INSERT'), ('{records}', 'UPDATE'), ('{records}', 'DELETE'),
             ('{meta}', 'UPDATE')) AS needed (name, privilege)
WHERE NOT has_table_privilege(name, privilege)


-- name: figures_overdue
SELECT count(*), min(expires_at)
FROM (SELECT expires_at FROM {records}
      WHERE expires_minute <= $1::bigint / 60000000 AND expires_at <= $1::bigint
      ORDER BY expires_minute LIMIT $2::integer) AS overdue


-- name: figures_transaction
-- What keeps vacuum from clearing up: the oldest snapshot, or prepared transaction, in this database. Of others' sessions
-- only a member of pg_read_all_stats sees it.
SELECT (date_part('epoch', clock_timestamp() - since) * 1000000)::bigint, who
FROM (SELECT xact_start AS since, format('pid %s of %s, %s', pid, usename, state) AS who
      FROM pg_stat_activity
      WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
        AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND xact_start IS NOT NULL
      UNION ALL
      SELECT prepared, format('prepared transaction %s of %s', gid, owner)
      FROM pg_prepared_xacts WHERE database = current_database()) AS open
ORDER BY since LIMIT 1


-- name: figures_rows
-- As the statistics have them. The tables of the inbox and the outbox are looked at where they are.
SELECT relname::text, n_live_tup, n_dead_tup
FROM pg_stat_user_tables
WHERE relid IN (SELECT to_regclass(name) FROM unnest(ARRAY['{records}', '{outbox}', '{inbox}']) AS t (name))


-- name: figures_settings
SELECT name::text, setting::text FROM pg_settings WHERE name IN ('autovacuum', 'synchronous_commit', 'fsync')


-- name: facts
-- Asked once per connection: who answers, whether it is a replica, the isolation level, the encoding.
SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('default_transaction_isolation'),
       current_setting('server_encoding'), current_setting('server_version_num')::integer


-- name: session
-- Set on connections of our own that no pooler shares. A server that gives up in time leaves no statement behind
-- that is applied long after its caller gave up. A plan made while the table was small must not scan it later on.
SELECT set_config('default_transaction_isolation', 'read committed', false),
       set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false),
       set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false)

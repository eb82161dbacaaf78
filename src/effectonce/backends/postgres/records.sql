-- The store's statements for PostgreSQL. `-- name: x` starts statement x; each statement is its own transaction.
--
-- A word in braces stands for an expression. The file defines {decision}, {settled}, {record_columns} and
-- {listed_columns} itself, each under its name; `statements.py` defines the others:
--
-- {records}, {meta}   the two tables
-- {now}               the server's clock at the moment of evaluation, in microseconds. now() would be the moment at which
--                     the transaction began: after a wait for a lock, a short lease counted from it would be over already.
-- {announced}         true; evaluating it also notifies those who wait for the record `l`
-- {is_locked}         the row `r` is the one that was locked as `l`: it has the same place (ctid), and the same identity,
--                     because each partition of a partitioned table has the same places. IS NOT DISTINCT FROM cannot be
--                     joined on, so that the plan finds the row by its place.
-- {place}             the place of the record that the operation `i` names
-- {is_placed}         the row `r` is at that place, and is claimed by the owner and token of the operation `l`. A row that
--                     was changed since is at another place.
-- {exhausted}         how the error begins that is stored when no attempt is left
--
-- All statements run in READ COMMITTED. There a statement reads the rows as they were when it began, but locks and changes
-- their newest versions. Hence these rules:
--   * A batch is sorted by (scope, key), and rows are locked one by one in this order (LATERAL ... FOR UPDATE can only be a
--     nested loop), so that two batches never wait for each other in a circle.
--   * A locked row is changed by its place: a join by key became a sequential scan on a young table.
--   * If a rival changed a row after the statement began, the statement locks and judges the newest version, but its
--     UPDATE does not see that version. Such an operation gets no row, and the client asks again.


-- name: decision
-- An expression, not a statement: how a claim of the record `r` is decided, by the steps of `contracts.Port.run`. `r` has the
-- columns of the record (all NULL: there is none), the operation's `claimant`, `fingerprints`, `max_attempts` and
-- `waiting`, and `now`.
--
-- These decisions change the record (`codec.CHANGING_DECISIONS` names them, too): take_expired, take_free and take_lapsed grant the claim, exhaust ends the record
-- because no attempt is left, lapse moves it to in_doubt, flag marks it as awaited. The others only answer.
CASE
    WHEN r.state IS NULL THEN 'absent'
    WHEN r.expires_at <= r.now THEN 'take_expired'
    -- A fingerprint is 33 bytes, and so is each entry of the list that it must be in.
    WHEN r.fingerprints <> '' AND (position(r.fingerprint IN r.fingerprints) - 1) % 33 <> 0 THEN 'mismatch'
    WHEN r.state IN ('done', 'failed', 'in_doubt') THEN r.state
    WHEN r.state = 'claimed' AND r.owner = r.claimant THEN 'claimed'
    WHEN r.state = 'claimed' AND r.now < r.lease_until THEN
        CASE WHEN r.waiting AND NOT r.awaited THEN 'flag' ELSE 'in_progress' END
    WHEN r.state = 'claimed' AND r.doubt_on_lapse THEN 'lapse'
    WHEN r.max_attempts > 0 AND r.attempts >= r.max_attempts THEN 'exhaust'
    WHEN r.state = 'claimed' THEN 'take_lapsed'
    ELSE 'take_free'
END


-- name: insert_claims
-- Not a statement: the new records of the claims `i`, granted at `i.now`. A FROM follows it.
INSERT INTO {records} (scope, key, state, attention, token, attempts, generation, created_at, changed_at,
                       lease_until, expires_at, expires_minute, doubt_on_lapse, owner, fingerprint, note)
SELECT i.scope, i.key, 'claimed', CASE WHEN i.doubts THEN 'lapse' WHEN i.brought IS NOT NULL THEN 'noted' END,
       i.now, 1, 0, i.now, i.now, i.now + i.lease,
       CASE WHEN NOT i.doubts THEN i.now + i.lease + i.retention END,
       CASE WHEN NOT i.doubts THEN (i.now + i.retention) / 60000000 END,
       i.doubts, i.claimant, nullif(substring(i.fingerprints FROM 1 FOR 33), ''), i.brought


-- name: claim
-- Inserts the records that are absent, which is nearly all of them; reads those that exist, without a lock or a write.
-- One round trip for new keys and for duplicates alike. $1 to $10: `codec.CLAIM_FIELDS`. The columns of the result, here
-- and in the three statements below, are those that `codec.read_claim_answer` reads, in its order.
--
-- Where the decision changes the record, `claim_existing` follows. No row: a rival's insert was committed after this
-- statement began, or the record was deleted meanwhile; the claim is sent again.
WITH input AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::integer[], $7::boolean[],
                $8::boolean[], $9::bytea[], $10::bytea[])
        WITH ORDINALITY
        AS i (scope, key, claimant, lease, retention, max_attempts, doubts, waiting, fingerprints, brought, n)
),
inserted AS (
    {insert_claims}
    FROM (SELECT i.*, {now} AS now FROM input i) i
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING scope, key, token
)
SELECT i.n, 'claimed' AS decision, c.token, 1 AS attempts, 0 AS generation, false AS lapsed, NULL::bigint AS remains,
       NULL::bytea AS result, NULL::bytea AS error, i.brought AS note
FROM inserted c JOIN input i ON i.scope = c.scope AND i.key = c.key
UNION ALL
SELECT r.n, {decision}, r.token, r.attempts, r.generation, r.lapsed, r.lease_until - r.now, r.result, r.error, r.note
FROM (
    SELECT i.n, i.claimant, i.max_attempts, i.waiting, i.fingerprints, {now} AS now, r.*
    FROM input i
    CROSS JOIN LATERAL (
        SELECT r.state, r.token, r.attempts, r.generation, r.lease_until, r.expires_at, r.doubt_on_lapse, r.lapsed,
               r.awaited, r.owner, r.fingerprint, r.result, r.error, r.note
        FROM {records} r WHERE r.scope = i.scope AND r.key = i.key LIMIT 1
    ) r
    WHERE (SELECT count(*) FROM inserted) < cardinality($1)
      AND NOT EXISTS (SELECT FROM inserted c WHERE c.scope = i.scope AND c.key = i.key)
) r


-- name: claim_one
-- `claim` for one claim. With `settle_one`, a lone claim and its settlement took 0.6 of the time (410 against 670 µs).
WITH inserted AS (
    {insert_claims}
    FROM (
        SELECT $1::text AS scope, $2::text AS key, $3::bytea AS claimant, $4::bigint AS lease, $5::bigint AS retention,
               $7::boolean AS doubts, $9::bytea AS fingerprints, $10::bytea AS brought, {now} AS now
    ) i
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING token
)
SELECT 1::bigint AS n, 'claimed' AS decision, token, 1 AS attempts, 0 AS generation, false AS lapsed,
       NULL::bigint AS remains, NULL::bytea AS result, NULL::bytea AS error, $10::bytea AS note
FROM inserted
UNION ALL
SELECT 1, {decision}, r.token, r.attempts, r.generation, r.lapsed, r.lease_until - r.now, r.result, r.error, r.note
FROM (
    SELECT $3::bytea AS claimant, $6::integer AS max_attempts, $8::boolean AS waiting, $9::bytea AS fingerprints,
           {now} AS now, r.*
    FROM {records} r
    WHERE r.scope = $1::text AND r.key = $2::text AND NOT EXISTS (SELECT FROM inserted)
) r


-- name: claim_existing
-- Locks the records, decides again, and makes the change. No row: the record was deleted, or changed after this statement
-- began; `claim` is sent again.
WITH locked AS MATERIALIZED (
    SELECT i.*, {now} AS now, r.*
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::integer[], $7::boolean[],
                $8::boolean[], $9::bytea[], $10::bytea[])
        WITH ORDINALITY
        AS i (scope, key, claimant, lease, retention, max_attempts, doubts, waiting, fingerprints, brought, n)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS place, r.state, r.token, r.attempts, r.generation, r.lease_until, r.expires_at,
               r.doubt_on_lapse, r.lapsed, r.awaited, r.owner, r.fingerprint, r.result, r.error, r.note
        FROM {records} r WHERE r.scope = i.scope AND r.key = i.key FOR UPDATE
    ) r
),
decided AS MATERIALIZED (
    SELECT r.*, {decision} AS decision FROM locked r
),
taken AS (
    UPDATE {records} r SET
        state = 'claimed',
        attention = CASE
            WHEN l.doubts THEN 'lapse'
            WHEN l.brought IS NOT NULL OR (r.note IS NOT NULL AND l.decision <> 'take_expired') THEN 'noted' END,
        token = greatest(r.token + 1, l.now),
        attempts = CASE l.decision WHEN 'take_expired' THEN 1 ELSE r.attempts + 1 END,
        generation = CASE l.decision WHEN 'take_expired' THEN 0 ELSE r.generation END,
        created_at = CASE l.decision WHEN 'take_expired' THEN l.now ELSE r.created_at END,
        changed_at = l.now,
        lease_until = l.now + l.lease,
        expires_at = CASE WHEN NOT l.doubts THEN l.now + l.lease + l.retention END,
        expires_minute = CASE WHEN NOT l.doubts THEN (l.now + l.retention) / 60000000 END,
        doubt_on_lapse = l.doubts,
        lapsed = l.decision = 'take_lapsed',
        owner = l.claimant,
        fingerprint = CASE
            WHEN l.fingerprints <> '' THEN substring(l.fingerprints FROM 1 FOR 33)
            WHEN l.decision <> 'take_expired' THEN r.fingerprint END,
        result = NULL,
        error = CASE WHEN l.decision <> 'take_expired' THEN r.error END,
        note = CASE l.decision WHEN 'take_expired' THEN l.brought ELSE coalesce(r.note, l.brought) END
    FROM decided l
    WHERE {is_locked} AND l.decision IN ('take_expired', 'take_free', 'take_lapsed')
    RETURNING l.n, 'claimed' AS decision, r.token, r.attempts, r.generation, r.lapsed, NULL::bigint AS remains,
              NULL::bytea AS result, r.error, r.note
),
ended AS (
    UPDATE {records} r SET
        state = CASE l.decision WHEN 'exhaust' THEN 'failed' ELSE 'in_doubt' END,
        attention = CASE l.decision WHEN 'exhaust' THEN 'failed' ELSE 'in_doubt' END,
        changed_at = l.now,
        expires_at = CASE l.decision WHEN 'exhaust' THEN l.now + l.retention END,
        expires_minute = CASE l.decision WHEN 'exhaust' THEN (l.now + l.retention) / 60000000 END,
        result = NULL,
        error = CASE l.decision WHEN 'exhaust' THEN {exhausted}::bytea || coalesce(r.error, '') ELSE r.error END
    FROM decided l
    WHERE {is_locked} AND l.decision IN ('exhaust', 'lapse')
    RETURNING l.n, r.state AS decision, r.token, r.attempts, r.generation, r.lapsed, NULL::bigint AS remains,
              NULL::bytea AS result, r.error, r.note
),
flagged AS (
    UPDATE {records} r SET awaited = true
    FROM decided l
    WHERE {is_locked} AND l.decision = 'flag'
    RETURNING l.n, 'in_progress' AS decision, r.token, r.attempts, r.generation, r.lapsed,
              r.lease_until - l.now AS remains, NULL::bytea AS result, NULL::bytea AS error, r.note
)
SELECT n, decision, token, attempts, generation, lapsed, lease_until - now AS remains, result, error, note
FROM decided
WHERE decision IN ('mismatch', 'claimed', 'done', 'failed', 'in_doubt', 'in_progress')
UNION ALL SELECT * FROM taken
UNION ALL SELECT * FROM ended
UNION ALL SELECT * FROM flagged


-- name: look
-- What a claim would decide, without a claim. Every operation gets its row.
SELECT r.n, {decision} AS decision, r.token, r.attempts, r.generation, false AS lapsed,
       r.lease_until - r.now AS remains, r.result, r.error, NULL::bytea AS note
FROM (
    SELECT i.n, ''::bytea AS claimant, i.fingerprints, 0 AS max_attempts, false AS waiting, {now} AS now, r.state, r.token,
           r.attempts, r.generation, r.lease_until, r.expires_at, r.doubt_on_lapse, r.awaited, r.owner, r.fingerprint,
           r.result, r.error
    FROM unnest($1::text[], $2::text[], $3::bytea[]) WITH ORDINALITY AS i (scope, key, fingerprints, n)
    LEFT JOIN LATERAL (SELECT * FROM {records} r WHERE r.scope = i.scope AND r.key = i.key LIMIT 1) r ON true
) r


-- name: settled
-- Not a statement: how the operation `l` changes its record `r`. A note and a renewal leave it claimed: a note has the
-- state `claimed`, a renewal also a lease. They keep the error of the attempt before, as a refund does. A renewal leaves expires_minute: it may be early, never late.
state = l.state,
attention = CASE l.state
    WHEN 'done' THEN NULL
    WHEN 'claimed' THEN coalesce(r.attention, CASE WHEN l.note IS NOT NULL THEN 'noted' END)
    ELSE l.state END,
attempts = r.attempts - l.refund::integer,
changed_at = CASE WHEN l.lease IS NULL THEN l.now ELSE r.changed_at END,
lease_until = coalesce(l.now + l.lease, r.lease_until),
expires_at = CASE
    WHEN l.lease IS NOT NULL THEN CASE WHEN NOT r.doubt_on_lapse THEN l.now + l.lease + l.retention END
    WHEN l.state = 'claimed' THEN r.expires_at
    WHEN l.state <> 'in_doubt' THEN l.now + l.retention END,
expires_minute = CASE
    WHEN l.state = 'claimed' THEN r.expires_minute
    WHEN l.state <> 'in_doubt' THEN (l.now + l.retention) / 60000000 END,
awaited = r.awaited AND l.state = 'claimed',
result = l.result,
error = CASE WHEN l.state = 'claimed' OR l.refund THEN r.error ELSE l.error END,
note = coalesce(l.note, r.note)


-- name: settle
-- The settlements, notes and renewals of records that are claimed by their owner and not awaited: nearly all. A record is
-- found by its key and changed by its place, without a lock before, which saves a sixth of the server's time for a batch
-- of 100. No row: `settle_locked` follows, which also says why. $1 to $10: `codec._SETTLEMENT_FIELDS`; $11: a renewal's
-- lease.
UPDATE {records} r SET
    {settled}
FROM (
    SELECT i.*, {now} AS now, {place} AS place
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::text[], $6::bigint[], $7::bytea[], $8::bytea[],
                $9::boolean[], $10::bytea[], $11::bigint[])
        WITH ORDINALITY AS i (scope, key, owner, token, state, retention, result, error, refund, note, lease, n)
) l
WHERE {is_placed} AND (l.state = 'claimed' OR NOT r.awaited)
RETURNING l.n


-- name: settle_one
-- `settle` for one operation and, with $12, for the caller's own transaction: that also settles a record that is awaited,
-- whose waiters then poll, or that is in doubt. A record that a rival changes meanwhile is judged again in its newest
-- version. No row: refused, or `settle_locked` follows.
UPDATE {records} r SET
    {settled}
FROM (
    SELECT $5::text AS state, $6::bigint AS retention, $7::bytea AS result, $8::bytea AS error, $9::boolean AS refund,
           $10::bytea AS note, $11::bigint AS lease, {now} AS now
) l
WHERE r.scope = $1::text AND r.key = $2::text AND r.owner = $3::bytea AND r.token = $4::bigint
  AND (r.expires_at IS NULL OR r.expires_at > l.now)
  AND CASE WHEN $12::boolean THEN r.state IN ('claimed', 'in_doubt')
           ELSE r.state = 'claimed' AND (l.state = 'claimed' OR NOT r.awaited) END
RETURNING 1::bigint AS n


-- name: settle_locked
-- Every settlement, note and renewal, with its reply. It is applied where the record is claimed by this owner with this
-- token (done: also in doubt under them). `applied` is also true where this very settlement was applied before: its reply
-- was lost. It is NULL where a rival changed the record after this statement began: it is sent again. No row: refused.
WITH locked AS MATERIALIZED (
    SELECT i.*, r.place, r.awaited, {now} AS now,
           r.was = 'claimed' OR (r.was = 'in_doubt' AND i.state = 'done') AS open, r.was, r.expires_at
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::text[], $6::bigint[], $7::bytea[], $8::bytea[],
                $9::boolean[], $10::bytea[], $11::bigint[])
        WITH ORDINALITY AS i (scope, key, owner, token, state, retention, result, error, refund, note, lease, n)
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


-- name: remember
-- A success that was not claimed, recorded wherever a claim would be granted. As in `claim`, absent records are inserted
-- first; the others are locked only where they are to be changed. No row: it is sent again.
WITH input AS MATERIALIZED (
    SELECT i.*, ''::bytea AS claimant, 0 AS max_attempts, false AS waiting
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::bytea[])
        WITH ORDINALITY AS i (scope, key, retention, fingerprints, memory, n)
),
inserted AS (
    INSERT INTO {records} (scope, key, state, token, attempts, generation, created_at, changed_at,
                           expires_at, expires_minute, doubt_on_lapse, owner, fingerprint, result)
    SELECT scope, key, 'done', now, 0, 0, now, now, now + retention, (now + retention) / 60000000, false, '',
           nullif(substring(fingerprints FROM 1 FOR 33), ''), memory
    FROM (SELECT i.*, {now} AS now FROM input i) i
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING scope, key
),
seen AS MATERIALIZED (
    SELECT r.*, {decision} AS decision
    FROM (
        SELECT i.*, {now} AS now, r.state, r.attempts, r.lease_until, r.expires_at, r.doubt_on_lapse, r.awaited,
               r.owner, r.fingerprint
        FROM input i
        CROSS JOIN LATERAL (
            SELECT * FROM {records} r WHERE r.scope = i.scope AND r.key = i.key LIMIT 1
        ) r
        WHERE (SELECT count(*) FROM inserted) < cardinality($1)
          AND NOT EXISTS (SELECT FROM inserted c WHERE c.scope = i.scope AND c.key = i.key)
    ) r
),
locked AS MATERIALIZED (
    SELECT r.*, {decision} AS decision
    FROM (
        SELECT s.n, s.scope, s.key, s.claimant, s.max_attempts, s.waiting, s.retention, s.fingerprints, s.memory,
               {now} AS now, r.*
        FROM seen s
        CROSS JOIN LATERAL (
            SELECT r.ctid AS place, r.state, r.attempts, r.lease_until, r.expires_at, r.doubt_on_lapse, r.awaited,
                   r.owner, r.fingerprint
            FROM {records} r WHERE r.scope = s.scope AND r.key = s.key FOR UPDATE
        ) r
        WHERE s.decision IN ('take_expired', 'take_free', 'take_lapsed')
    ) r
),
changed AS (
    UPDATE {records} r SET
        state = 'done',
        attention = NULL,
        token = greatest(r.token + 1, l.now),
        attempts = CASE l.decision WHEN 'take_expired' THEN 0 ELSE r.attempts END,
        generation = CASE l.decision WHEN 'take_expired' THEN 0 ELSE r.generation END,
        created_at = CASE l.decision WHEN 'take_expired' THEN l.now ELSE r.created_at END,
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
    WHERE {is_locked} AND l.decision IN ('take_expired', 'take_free', 'take_lapsed')
    RETURNING l.n, l.scope, l.key, l.awaited
)
SELECT i.n, true AS applied
FROM inserted c JOIN input i ON i.scope = c.scope AND i.key = c.key
UNION ALL
SELECT n, decision = 'done' FROM seen WHERE decision NOT IN ('take_expired', 'take_free', 'take_lapsed')
UNION ALL
SELECT n, decision = 'done' FROM locked WHERE decision NOT IN ('take_expired', 'take_free', 'take_lapsed')
UNION ALL
SELECT n, {announced} FROM changed l


-- name: newest
-- Not a statement: the end of `newest_recent` and of those after it. (It stands before the columns, which are filled into
-- it.) A page of the `sorted` rows, the last change first, those before ($4, $5, $6); and how many were sorted, also
-- where the page is empty.
page AS (
    SELECT changed_at, scope, key
    FROM sorted
    WHERE (expires_at IS NULL OR expires_at > (SELECT {now})) AND ($1::text IS NULL OR scope = $1)
      AND ($2::text IS NULL OR state = $2) AND strpos(key, $3::text) > 0
      AND (changed_at, scope, key) < ($4::bigint, $5::text, $6::text)
    ORDER BY changed_at DESC, scope DESC, key DESC
    LIMIT $7::integer
)
SELECT {record_columns}, c.sorted_count
FROM (SELECT count(*) AS sorted_count FROM sorted) c
LEFT JOIN page p ON true
LEFT JOIN {records} r ON (r.scope, r.key) = (p.scope, p.key)
ORDER BY p.changed_at DESC, p.scope DESC, p.key DESC


-- name: record_columns
-- Not a statement: a record as operators see it. `sql_store.record_from` takes the columns by their names.
r.scope, r.key, r.state, r.token, r.attempts, r.generation, r.doubt_on_lapse, r.created_at, r.changed_at, r.lease_until,
r.expires_at, r.owner, r.fingerprint, r.result, r.error, r.note


-- name: listed_columns
-- Not a statement: the same for a list. A record that is not `wanted` is only passed over, without its values.
r.scope, r.key, r.state, r.token, r.attempts, r.generation, r.doubt_on_lapse, r.created_at, r.changed_at, r.lease_until,
r.expires_at, r.owner, r.fingerprint, CASE WHEN r.wanted THEN r.result END AS result,
CASE WHEN r.wanted THEN r.error END AS error, CASE WHEN r.wanted THEN r.note END AS note, r.wanted


-- name: get
SELECT {record_columns}
FROM {records} r
WHERE r.scope = $1::text AND r.key = $2::text AND (r.expires_at IS NULL OR r.expires_at > {now})


-- name: list
-- The next $5 records after ($3, $4) by primary key, of the scope $1 or (NULL) of all. Those that have expired, or
-- are in another state than $2 (NULL: any), are not wanted: they are passed over.
SELECT {listed_columns}
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
SELECT {listed_columns}
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
SELECT {listed_columns}
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


-- name: newest_recent
-- Of the $8 records that expire last, and of those that never expire.
WITH sorted AS MATERIALIZED (
    (SELECT scope, key, state, changed_at, expires_at FROM {records}
     WHERE expires_minute IS NOT NULL ORDER BY expires_minute DESC LIMIT $8::integer)
    UNION ALL
    (SELECT scope, key, state, changed_at, expires_at FROM {records}
     WHERE attention = 'in_doubt' AND expires_minute IS NULL LIMIT $8::integer)
    UNION ALL
    (SELECT scope, key, state, changed_at, expires_at FROM {records}
     WHERE attention = 'lapse' AND expires_minute IS NULL LIMIT $8::integer)
),
{newest}


-- name: newest_of_scope
WITH sorted AS MATERIALIZED (
    SELECT scope, key, state, changed_at, expires_at FROM {records} WHERE scope = $1::text LIMIT $8::integer
),
{newest}


-- name: newest_attention
WITH sorted AS MATERIALIZED (
    SELECT scope, key, state, changed_at, expires_at FROM {records}
    WHERE attention = $2::text AND ($1::text IS NULL OR scope = $1) LIMIT $8::integer
),
{newest}


-- name: newest_unfinished
WITH sorted AS MATERIALIZED (
    SELECT scope, key, state, changed_at, expires_at FROM {records}
    WHERE attention IN ('free', 'lapse', 'noted') AND note IS NOT NULL AND ($1::text IS NULL OR scope = $1)
    LIMIT $8::integer
),
{newest}


-- name: stats
-- How many records are in each state, and the least time of change. At most $1 of those that `attention` finds; the
-- others have no index (see the schema), and are counted among the $2 records that expire last. `scanned` is how
-- many of those there were: where it is $2, others were not counted.
WITH scanned AS MATERIALIZED (
    SELECT state, attention, expires_at
    FROM {records}
    WHERE expires_minute IS NOT NULL
    ORDER BY expires_minute DESC
    LIMIT $2::integer
)
SELECT state, count(*) AS count, NULL::bigint AS least
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
-- An operator's decision on a record in doubt. $3 is its new state: done, failed or free.
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
-- Rows that are locked are in use, and wait for the next sweep. It reads one row more than the limit of each kind, which
-- says whether there is more to do.
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
SELECT (SELECT count(*) FROM deleted) AS deleted, (SELECT count(*) FROM moved l WHERE {announced}) AS lapsed,
       (SELECT more FROM rest) AS more


-- name: now
SELECT {now} AS now


-- name: version
SELECT max(value) FILTER (WHERE name = 'schema') AS stored, max(value) FILTER (WHERE name = 'oldest') AS oldest
FROM {meta}


-- name: durability
-- The settings under which nothing may be written, or under which commits may be lost: to a power cut, to a crash, to
-- the emptying of tables that are not in the log.
SELECT current_setting('transaction_read_only') = 'on' AS read_only,
       current_setting('fsync') = 'off' AS unsynced,
       current_setting('synchronous_commit') = 'off' AS answers_early,
       (SELECT string_agg(oid::regclass::text, ', ')
        FROM pg_class
        WHERE relpersistence = 'u'
          AND oid IN (SELECT to_regclass('{records}') UNION ALL SELECT to_regclass('{meta}')
                      UNION ALL SELECT relid FROM pg_partition_tree(to_regclass('{records}')))) AS unlogged


-- name: denied
-- The privileges that claims, settlements and sweeps need and this user lacks; NULL: none. They are privileges on the
-- whole table: to grant every column of it is not enough for a claim.
SELECT string_agg(privilege || ' on ' || name, ', ') AS lacking
FROM (VALUES ('{records}', 'SELECT'), ('{records}', 'INSERT'), ('{records}', 'UPDATE'), ('{records}', 'DELETE'),
             ('{meta}', 'UPDATE')) AS needed (name, privilege)
WHERE NOT has_table_privilege(name, privilege)


-- name: figures_overdue
SELECT count(*) AS count, min(expires_at) AS oldest
FROM (SELECT expires_at FROM {records}
      WHERE expires_minute <= $1::bigint / 60000000 AND expires_at <= $1::bigint
      ORDER BY expires_minute LIMIT $2::integer) AS overdue


-- name: figures_transaction
-- The oldest snapshot, or prepared transaction, in this database, which keeps vacuum from removing dead rows. Only a
-- member of pg_read_all_stats sees those of other users.
SELECT (date_part('epoch', clock_timestamp() - since) * 1000000)::bigint AS age, who
FROM (SELECT xact_start AS since, format('pid %s of %s, %s', pid, usename, state) AS who
      FROM pg_stat_activity
      WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
        AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND xact_start IS NOT NULL
      UNION ALL
      SELECT prepared, format('prepared transaction %s of %s', gid, owner)
      FROM pg_prepared_xacts WHERE database = current_database()) AS open
ORDER BY since LIMIT 1


-- name: figures_rows
-- Live and dead rows, as the statistics estimate them. The tables of the inbox and the outbox may be missing.
SELECT relname::text AS name, n_live_tup AS live, n_dead_tup AS dead
FROM pg_stat_user_tables
WHERE relid IN (SELECT to_regclass(name) FROM unnest(ARRAY['{records}', '{outbox}', '{inbox}']) AS t (name))


-- name: figures_settings
-- How many standbys follow this server is no setting, but decides what the others mean.
SELECT name::text AS name, setting::text AS setting
FROM pg_settings
WHERE name IN ('autovacuum', 'synchronous_commit', 'synchronous_standby_names', 'fsync')
UNION ALL
SELECT 'standbys', count(*)::text FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'


-- name: facts
-- Sent once per connection: the server's process, whether it is a replica, the isolation level, the encoding.
SELECT pg_backend_pid() AS pid, pg_is_in_recovery() AS replica,
       current_setting('default_transaction_isolation') AS isolation, current_setting('server_encoding') AS encoding,
       current_setting('server_version_num')::integer AS version


-- name: session_settings
-- For connections of our own that no pooler shares. The server gives up before its caller does, so that no statement is
-- applied long afterwards. A plan made while the table was small must not scan it later on.
SELECT set_config('default_transaction_isolation', 'read committed', false),
       set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false),
       set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false)

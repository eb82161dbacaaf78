-- The store's statements for MySQL and MariaDB. `-- name: x` starts statement x.
--
-- {records}, {meta}  the two tables
-- {now}              the clock when the expression is evaluated: SYSDATE. NOW() is when the statement began: a short
--                    lease that is counted from there may be over after a wait for a lock.
-- {began}            the clock when the statement began: a constant, so that an index range can end there.
-- {rows}, {ids} ...  literals. All text and bytes are hexadecimal: immune to quoting modes and character sets.
-- {scan}, {wanted}    of `page`: the entries of an index, and which of them match
--
-- The session is in READ COMMITTED (see the connection), so that statements lock the rows they name and no
-- gaps. Rows are named by primary key in sorted order, so that two batches never deadlock.


-- name: claim
-- One row per claim: `codec.claim_row`, whose values stand in the order of these columns. Assignments run from left to right and see the ones before them: `verdict` comes first and
-- decides on the old values, everything after it follows the verdict.
--   0 keep   1 take a free record   2 take a lapsed one   3 take an expired one   4 no attempt left   5 in doubt
-- A record with verdict 0 is not written at all (InnoDB compares), so duplicates cost no fsync. Affected rows decide
-- nothing: client flags and proxies change their meaning. A claim sends one fingerprint of 33 bytes per version, one
-- after the other: a match starts at position 1, 34, 67 ..., so that `LOCATE(...) % 33` is 1.
--
-- `statements.upserts_with_alias` rewrites this statement and `remember` for MySQL: it takes them apart at `VALUES {rows}`
-- and replaces each `VALUES(column)`.
INSERT INTO {records}
    (id, scope, `key`, owner, doubt_on_lapse, fingerprint, lease, retention, max_attempts,
     changed_at, created_at, token, lease_until, expires_at, state, attempts, note)
VALUES {rows}
ON DUPLICATE KEY UPDATE
    verdict = CASE
        WHEN COALESCE(expires_at <= {now}, FALSE) THEN 3
        WHEN fingerprint <> '' AND VALUES(fingerprint) <> ''
             AND LOCATE(LEFT(fingerprint, 33), VALUES(fingerprint)) % 33 <> 1 THEN 0
        WHEN state NOT IN ('claimed', 'free') THEN 0
        WHEN state = 'claimed' AND (owner = VALUES(owner) OR lease_until > {now}) THEN 0
        WHEN state = 'claimed' AND doubt_on_lapse THEN 5
        WHEN VALUES(max_attempts) > 0 AND attempts >= VALUES(max_attempts) THEN 4
        WHEN state = 'claimed' THEN 2
        ELSE 1 END,
    token = IF(verdict IN (1, 2, 3), GREATEST(token + 1, {now}), token),
    attempts = CASE WHEN verdict = 3 THEN 1 WHEN verdict IN (1, 2) THEN attempts + 1 ELSE attempts END,
    generation = IF(verdict = 3, 0, generation),
    lapsed = IF(verdict IN (1, 2, 3), verdict = 2, lapsed),
    created_at = IF(verdict = 3, {now}, created_at),
    changed_at = IF(verdict = 0, changed_at, {now}),
    lease = IF(verdict IN (1, 2, 3), VALUES(lease), lease),
    retention = IF(verdict IN (1, 2, 3), VALUES(retention), retention),
    max_attempts = IF(verdict IN (1, 2, 3), VALUES(max_attempts), max_attempts),
    doubt_on_lapse = IF(verdict IN (1, 2, 3), VALUES(doubt_on_lapse), doubt_on_lapse),
    fingerprint = CASE
        WHEN verdict = 3 OR (verdict IN (1, 2) AND VALUES(fingerprint) <> '') THEN VALUES(fingerprint)
        ELSE fingerprint END,
    lease_until = CASE
        WHEN verdict IN (1, 2, 3) THEN {now} + VALUES(lease)
        WHEN verdict IN (4, 5) THEN NULL
        ELSE lease_until END,
    expires_at = CASE
        WHEN verdict IN (1, 2, 3) THEN IF(VALUES(doubt_on_lapse), NULL, lease_until + VALUES(retention))
        WHEN verdict = 4 THEN {now} + VALUES(retention)
        ELSE expires_at END,
    result = IF(verdict IN (0, 5), result, NULL),
    error = CASE verdict WHEN 3 THEN NULL WHEN 4 THEN CONCAT({exhausted}, COALESCE(error, '')) ELSE error END,
    note = CASE WHEN verdict = 3 THEN VALUES(note) WHEN verdict IN (1, 2) THEN COALESCE(note, VALUES(note)) ELSE note END,
    owner = IF(verdict IN (1, 2, 3), VALUES(owner), owner),
    state = CASE
        WHEN verdict IN (1, 2, 3) THEN 'claimed'
        WHEN verdict = 4 THEN 'failed'
        WHEN verdict = 5 THEN 'in_doubt'
        ELSE state END


-- name: remember
-- Records a success that was not claimed (mode S). It never overwrites a live claim, a doubt, a failure or an earlier
-- success. One row per success: `codec.remember_row`. Assignments and fingerprints: see `claim`.
INSERT INTO {records}
    (id, scope, `key`, owner, fingerprint, retention, changed_at, created_at, token, expires_at, state, attempts, result)
VALUES {rows}
ON DUPLICATE KEY UPDATE
    verdict = CASE
        WHEN COALESCE(expires_at <= {now}, FALSE) THEN 3
        WHEN fingerprint <> '' AND VALUES(fingerprint) <> ''
             AND LOCATE(LEFT(fingerprint, 33), VALUES(fingerprint)) % 33 <> 1 THEN 0
        WHEN state NOT IN ('claimed', 'free') THEN 0
        WHEN state = 'claimed' AND (doubt_on_lapse OR lease_until > {now}) THEN 0
        ELSE 1 END,
    token = IF(verdict, GREATEST(token + 1, {now}), token),
    attempts = IF(verdict = 3, 0, attempts),
    generation = IF(verdict = 3, 0, generation),
    lapsed = IF(verdict, 0, lapsed),
    created_at = IF(verdict = 3, {now}, created_at),
    changed_at = IF(verdict, {now}, changed_at),
    doubt_on_lapse = IF(verdict, 0, doubt_on_lapse),
    fingerprint = IF(verdict, VALUES(fingerprint), fingerprint),
    lease_until = IF(verdict, NULL, lease_until),
    expires_at = IF(verdict, {now} + VALUES(retention), expires_at),
    result = IF(verdict, VALUES(result), result),
    error = IF(verdict, NULL, error),
    note = IF(verdict, NULL, note),
    owner = IF(verdict, '', owner),
    state = IF(verdict, 'done', state)


-- name: stored_claim
-- The columns that answer a claim, a look or a remember, in the order of `record.StoredClaim`'s fields; the lease as
-- the time that is left.
id, state, owner, token, attempts, generation, lapsed, doubt_on_lapse, lease_until - {now},
LEFT(fingerprint, 33), result, error, note


-- name: reread
-- For MySQL, which has no RETURNING: reads in the transaction of the insert, while its rows are still locked.
SELECT {stored_claim} FROM {records} WHERE id IN ({ids})


-- name: look
-- Reads records without claiming them.
SELECT {stored_claim} FROM {records} WHERE id IN ({ids}) AND NOT COALESCE(expires_at <= {now}, FALSE)


-- name: settle
-- Ends claims, writes notes, renews leases. A note and a renewal have the state `claimed`, a renewal also a lease. They
-- keep the error of the attempt before, as a refund does. An
-- update with a join has no order of assignments, so no expression here reads a column that another writes.
-- STRAIGHT_JOIN takes the locks in the order of the list, which is sorted.
UPDATE ({rows}) AS s STRAIGHT_JOIN {records} AS r ON r.id = s.id
SET r.state = s.state,
    r.result = s.result,
    r.error = IF(s.state = 'claimed' OR s.refund, r.error, s.error),
    r.note = COALESCE(s.note, r.note),
    r.attempts = r.attempts - s.refund,
    r.lease_until = IF(s.state = 'claimed', COALESCE({now} + s.lease, r.lease_until), NULL),
    r.expires_at = CASE
        WHEN s.lease IS NOT NULL THEN IF(r.doubt_on_lapse, NULL, {now} + s.lease + s.retention)
        WHEN s.state = 'claimed' THEN r.expires_at
        WHEN s.state = 'in_doubt' THEN NULL
        ELSE {now} + s.retention END,
    r.changed_at = IF(s.lease IS NULL, {now}, r.changed_at),
    r.verdict = 0
WHERE r.owner = s.owner AND r.token = s.token AND NOT COALESCE(r.expires_at <= {now}, FALSE)
    AND (r.state = 'claimed' OR (r.state = 'in_doubt' AND s.state = 'done'))


-- name: complete
-- Completes a record inside the caller's own transaction; `completed` then tells whether it was applied. Parameters are
-- numbered, as sessions take them.
UPDATE {records}
SET result = $4, error = NULL, expires_at = {now} + $5, changed_at = {now}, verdict = 0, lease_until = NULL,
    state = 'done'
WHERE id = $1 AND owner = $2 AND token = $3 AND state IN ('claimed', 'in_doubt')
    AND NOT COALESCE(expires_at <= {now}, FALSE)


-- name: completed
SELECT 1 FROM {records} WHERE id = $1 AND owner = $2 AND token = $3 AND state = 'done' FOR UPDATE


-- name: before
-- Stores the time before a settlement, for `settled`.
SET @effectonce_before = {now}


-- name: settled
-- Reads owner, token and state in the transaction of the update. Records that had expired before the update are
-- absent; one that the update gave a very short retention is not.
SELECT id, owner, token, state FROM {records}
WHERE id IN ({ids}) AND NOT COALESCE(expires_at <= @effectonce_before, FALSE)


-- name: record
-- The columns of a record, in the order of `sql_store.RECORD_COLUMNS`; and the id.
scope, `key`, state, token, attempts, generation, doubt_on_lapse, created_at, changed_at, lease_until,
expires_at, owner, LEFT(fingerprint, 33), result, error, note, id


-- name: get
-- Whole records, for operators.
SELECT {record} FROM {records} WHERE id IN ({ids}) AND NOT COALESCE(expires_at <= {now}, FALSE)


-- name: forget
-- Frees a record for a new generation. The SELECT tells whether there is one, and locks it until the commit.
BEGIN;
SELECT 1 FROM {records} WHERE id = {id} AND NOT COALESCE(expires_at <= {now}, FALSE) FOR UPDATE;
UPDATE {records}
SET generation = generation + 1, attempts = 0, token = GREATEST(token + 1, {now}), owner = '',
    lapsed = 0, lease_until = NULL, changed_at = {now}, expires_at = {now} + {retention},
    result = NULL, error = NULL, note = NULL, fingerprint = '', verdict = 0, state = 'free'
WHERE id = {id} AND NOT COALESCE(expires_at <= {now}, FALSE);
COMMIT


-- name: resolve
-- An operator's decision on a record in doubt; {is_retry} is 1 where it shall run again. The SELECT tells whether it
-- was in doubt.
BEGIN;
SELECT 1 FROM {records}
WHERE id = {id} AND NOT COALESCE(expires_at <= {now}, FALSE)
    AND (state = 'in_doubt' OR (state = 'claimed' AND doubt_on_lapse AND lease_until <= {now})) FOR UPDATE;
UPDATE {records}
SET generation = generation + {is_retry}, attempts = IF({is_retry}, 0, attempts), token = GREATEST(token + 1, {now}),
    owner = '', changed_at = {now}, expires_at = {now} + {retention},
    result = {result}, error = {error}, verdict = 0,
    lease_until = NULL, state = {state}
WHERE id = {id} AND NOT COALESCE(expires_at <= {now}, FALSE)
    AND (state = 'in_doubt' OR (state = 'claimed' AND doubt_on_lapse AND lease_until <= {now}));
COMMIT


-- name: expired
-- Candidates of the sweep, read without locks; each is checked again before it is deleted.
SELECT id FROM {records} FORCE INDEX (due)
WHERE state IN ('done', 'failed', 'free', 'claimed') AND expires_at <= {began} LIMIT {limit}


-- name: lapsed
-- Claims that lapse to in_doubt and whose lease has ended.
SELECT id FROM {records} FORCE INDEX (due)
WHERE state = 'claimed' AND expires_at IS NULL AND lease_until <= {began} LIMIT {limit}


-- name: hold_expired
-- SKIP LOCKED: the sweeper never waits. By primary key only: locks on another index, taken before the row's, would
-- deadlock with claims, which take them after it.
BEGIN;
SELECT id FROM {records} FORCE INDEX (PRIMARY)
WHERE id IN ({ids}) AND expires_at <= {now} FOR UPDATE SKIP LOCKED


-- name: hold_lapsed
BEGIN;
SELECT id FROM {records} FORCE INDEX (PRIMARY)
WHERE id IN ({ids}) AND state = 'claimed' AND expires_at IS NULL AND lease_until <= {now} FOR UPDATE SKIP LOCKED


-- name: delete
DELETE FROM {records} WHERE id = {id} AND expires_at <= {now}


-- name: doubt
UPDATE {records} SET state = 'in_doubt', lease_until = NULL, changed_at = {now}, verdict = 0
WHERE id = {id} AND state = 'claimed' AND doubt_on_lapse AND expires_at IS NULL


-- name: swept
-- When the last sweep ended.
INSERT INTO {meta} (name, value) VALUES ('swept_at', {now}) ON DUPLICATE KEY UPDATE value = {now}


-- name: stats
-- Counts per state: index only, at most {cap} entries each.
SELECT 'claimed', COUNT(*) FROM (SELECT 1 FROM {records} FORCE INDEX (due)
    WHERE state = 'claimed' AND (expires_at IS NULL OR expires_at > {began}) LIMIT {cap}) AS c
UNION ALL SELECT 'done', COUNT(*) FROM (SELECT 1 FROM {records} FORCE INDEX (due)
    WHERE state = 'done' AND expires_at > {began} LIMIT {cap}) AS d
UNION ALL SELECT 'failed', COUNT(*) FROM (SELECT 1 FROM {records} FORCE INDEX (due)
    WHERE state = 'failed' AND expires_at > {began} LIMIT {cap}) AS f
UNION ALL SELECT 'free', COUNT(*) FROM (SELECT 1 FROM {records} FORCE INDEX (due)
    WHERE state = 'free' AND expires_at > {began} LIMIT {cap}) AS e
UNION ALL SELECT 'in_doubt', COUNT(*) FROM (SELECT 1 FROM {records} FORCE INDEX (due)
    WHERE state = 'in_doubt' LIMIT {cap}) AS i;
SELECT MIN(changed_at) FROM {records} FORCE INDEX (recent) WHERE state = 'in_doubt';
SELECT value FROM {meta} WHERE name = 'swept_at'


-- name: page_of_state
-- The next {width} entries of an index, from the cursor on; keys only.
SELECT id, changed_at AS at FROM {records} FORCE INDEX (recent)
WHERE state = {state} AND changed_at <= {at} AND (changed_at < {at} OR id < {id})
ORDER BY changed_at DESC, id DESC LIMIT {width}


-- name: page_of_scope
SELECT id, created_at AS at FROM {records} FORCE INDEX (scoped)
WHERE scope = {scope} AND created_at <= {at} AND (created_at < {at} OR id < {id})
ORDER BY created_at DESC, id DESC LIMIT {width}


-- name: sorted_page_of_scope
-- The same by the last change: of the records of the scope that were created last.
SELECT r.id, r.at FROM (SELECT id, changed_at AS at, scope, `key`, state FROM {records} FORCE INDEX (scoped)
                        WHERE scope = {scope} ORDER BY created_at DESC LIMIT {most}) AS r
WHERE r.at <= {at} AND (r.at < {at} OR r.id < {id}) AND {wanted}
ORDER BY at DESC, id DESC LIMIT {width}


-- name: more_of_scope
-- Whether the scope has more records than that.
SELECT 1 FROM {records} FORCE INDEX (scoped) WHERE scope = {scope} LIMIT 1 OFFSET {most}


-- name: page
-- Which of those entries match the query.
SELECT k.id, k.at, NOT COALESCE(r.expires_at <= {began}, FALSE) AND {wanted}
FROM ({scan}) AS k JOIN {records} AS r ON r.id = k.id
ORDER BY k.at DESC, k.id DESC


-- name: version
SELECT MAX(IF(name = 'schema', value, NULL)), MAX(IF(name = 'oldest', value, NULL)) FROM {meta}


-- name: clock
SELECT {now}


-- name: figures
-- For `effectonce doctor`: how many expired records the sweeper is behind, and the size of the table.
SELECT COUNT(*), MIN(expires_at) FROM (SELECT expires_at FROM {records} FORCE INDEX (due)
    WHERE state IN ('done', 'failed', 'free', 'claimed') AND expires_at <= {overdue} LIMIT {cap}) AS o;
SELECT table_name, COALESCE(table_rows, 0) FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = '{records_name}'


-- name: figures_transaction
-- The longest open transaction, which holds up the purge of old row versions. Needs the privilege PROCESS.
SELECT TIMESTAMPDIFF(MICROSECOND, trx_started, NOW(6)) / 1000000.0, trx_mysql_thread_id, trx_state
FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID() ORDER BY trx_started LIMIT 1


-- name: safety
-- The settings that could lose records: another engine, commits that are not flushed, statement-based replication of
-- SYSDATE, a replica, packets too small for results, SYSDATE turned into NOW.
SELECT table_name, engine FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name IN ('{records_name}', '{meta_name}');
SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('innodb_flush_log_at_trx_commit', 'log_bin', 'binlog_format', 'read_only', 'max_allowed_packet');
SELECT SLEEP(0.002), SYSDATE(6) > NOW(6)


-- name: rights
-- Fails where this user may not claim, settle or sweep. EXPLAIN needs the same privileges, and changes nothing.
EXPLAIN INSERT INTO {records} SELECT * FROM {records} WHERE FALSE;
EXPLAIN UPDATE {records} SET token = token WHERE FALSE;
EXPLAIN DELETE FROM {records} WHERE FALSE;
EXPLAIN INSERT INTO {meta} SELECT * FROM {meta} WHERE FALSE;
EXPLAIN UPDATE {meta} SET value = value WHERE FALSE

-- The relay's statements for MySQL and MariaDB. `-- name: x` starts statement x. The session is in READ COMMITTED, so
-- that each statement of a transaction sees what was committed before it, and locks the rows it names and no gaps.
--
-- {outbox}, {meta}       the tables
-- {now}, {began}         the clock when the expression is evaluated, and when the statement began
-- {owner}, {seqs} ...    literals
-- {row_columns}          the fields of `contracts.outbox.OutboxRow`, {entry_columns} those of `OutboxEntry`
-- {before_or_null}       `before`, or NULL where rows are leased without regard to their order
--
-- FORCE INDEX: for a list of numbers the optimizer prefers to walk over the whole table, and waits for other sessions'
-- locks on the way.


-- name: before
-- An expression, not a statement: the unpublished row before a candidate in its line. Rows of one line leave in their
-- order, also with several relays: a row that SKIP LOCKED passes over still blocks the others of its line.
(SELECT b.seq FROM {outbox} b FORCE INDEX (line) WHERE b.line = p.line AND b.seq < p.seq
 ORDER BY b.line DESC, b.seq DESC LIMIT 1)


-- name: fresh
-- Rows that are pending, and not leased by another relay: their lease may have ended.
SELECT p.seq, p.line, {before_or_null}
FROM {outbox} p FORCE INDEX (due)
WHERE p.state = 'pending' AND p.due_at = 0 AND p.seq > {after} AND (p.leased_until <= {began} OR p.owner = {owner})
{without}
ORDER BY p.seq LIMIT {limit} FOR UPDATE SKIP LOCKED


-- name: due
-- Rows whose retry is due.
SELECT p.seq, p.line, {before_or_null}
FROM {outbox} p FORCE INDEX (due)
WHERE p.state = 'waiting' AND p.due_at <= {began} {without}
ORDER BY p.due_at, p.seq LIMIT {limit} FOR UPDATE SKIP LOCKED


-- name: blockers
-- The rows that others wait behind, and the clock.
SELECT seq, state, due_at, {began} FROM {outbox} FORCE INDEX (PRIMARY) WHERE seq IN ({seqs})


-- name: defer
-- Rows behind a waiting one wait as long, so that the next lease does not read them again.
UPDATE {outbox} FORCE INDEX (PRIMARY) SET state = 'waiting', due_at = CASE seq {cases} END WHERE seq IN ({seqs})


-- name: take
-- Assignments run from left to right: `attempts` still sees the old owner. Repeated by its owner, it counts no attempt.
UPDATE {outbox} FORCE INDEX (PRIMARY) SET
    state = 'pending', due_at = 0, attempts = attempts + IF(owner <=> {owner}, 0, 1), leased_until = {now} + {span},
    owner = {owner}
WHERE seq IN ({seqs})


-- name: leased
-- The leased messages.
SELECT {row_columns} FROM {outbox} FORCE INDEX (PRIMARY) WHERE seq IN ({seqs}) ORDER BY seq


-- name: probe
-- Fails where the table lacks a column that this release reads. Sent once per connection.
SELECT seq, id, message_id, destination, ordering_key, line, type, headers, payload, content, trace_id, source, time,
       created_at, state, due_at, leased_until, owner, attempts, error, published_at
FROM {outbox} LIMIT 0


-- name: rights
-- Fails where this user may not relay. EXPLAIN needs the same privileges, and changes nothing.
EXPLAIN UPDATE {outbox} SET state = state WHERE FALSE;
EXPLAIN DELETE FROM {outbox} WHERE FALSE;
EXPLAIN INSERT INTO {meta} SELECT * FROM {meta} WHERE FALSE;
EXPLAIN UPDATE {meta} SET value = value WHERE FALSE


-- name: publish
-- The broker has confirmed these rows. They stay for {keep} microseconds.
UPDATE {outbox} FORCE INDEX (PRIMARY) SET
    state = 'published', due_at = {now} + {keep}, published_at = {now}, line = NULL, leased_until = 0, error = NULL
WHERE seq IN ({seqs}) AND owner = {owner} AND state = 'pending'


-- name: publish_and_delete
-- The same where published rows do not stay.
DELETE o FROM {outbox} o FORCE INDEX (PRIMARY)
WHERE o.seq IN ({seqs}) AND o.owner = {owner} AND o.state = 'pending'


-- name: settle
-- Rows that were not published: tried again later, or parked. Only the owner of the lease may.
UPDATE ({rows}) i STRAIGHT_JOIN {outbox} o FORCE INDEX (PRIMARY) ON i.seq = o.seq SET
    o.due_at = IF(i.state = 'waiting', {now} + i.span, 0), o.leased_until = 0, o.attempts = o.attempts - i.refund,
    o.error = COALESCE(i.error, o.error), o.owner = NULL, o.state = i.state
WHERE o.owner = {owner} AND o.state = 'pending'


-- name: parked
-- Parked rows, locked for `unpark` or `discard`.
SELECT seq, line FROM {outbox} WHERE state = 'parked' {chosen} ORDER BY due_at, seq LIMIT {limit} FOR UPDATE


-- name: unpark
-- Parked rows start again, with no attempt counted.
UPDATE {outbox} FORCE INDEX (PRIMARY) SET state = 'pending', due_at = 0, attempts = 0, owner = NULL, leased_until = 0
WHERE seq IN ({seqs})


-- name: discard
DELETE o FROM {outbox} o FORCE INDEX (PRIMARY) WHERE o.seq IN ({seqs})


-- name: follow
-- Rows that wait behind the unparked ones are due at once: up to {limit} of them, the others come due by themselves.
UPDATE {outbox} FORCE INDEX (line) SET due_at = {now} WHERE state = 'waiting' AND line IN ({lines})
ORDER BY seq LIMIT {limit}


-- name: list
-- One page for operators.
SELECT {entry_columns} FROM {outbox}
WHERE state = {state} AND (due_at > {due_at} OR (due_at = {due_at} AND seq > {seq}))
ORDER BY due_at, seq LIMIT {limit}


-- name: find
-- Rows of the {recent} newest whose key, message id or ordering key is from {first} up to before {end}. Compared as bytes:
-- the columns' collation pads with spaces.
SELECT {entry_columns}
FROM (SELECT seq FROM {outbox} ORDER BY seq DESC LIMIT {recent}) r JOIN {outbox} o USING (seq)
WHERE (CAST(o.id AS BINARY) >= {first} AND CAST(o.id AS BINARY) < {end})
   OR (CAST(o.message_id AS BINARY) >= {first} AND CAST(o.message_id AS BINARY) < {end})
   OR (CAST(o.ordering_key AS BINARY) >= {first} AND CAST(o.ordering_key AS BINARY) < {end})
ORDER BY seq DESC LIMIT {limit}


-- name: count_up_to
SELECT COUNT(*) FROM (SELECT 1 FROM {outbox} LIMIT {limit}) c


-- name: count
-- How many rows are in a state, counted up to a limit, and how old the oldest is.
SELECT {state}, COUNT(*), MIN(created_at)
FROM (SELECT created_at FROM {outbox} WHERE state = {state} ORDER BY due_at, seq LIMIT {limit}) c


-- name: cleaned_at
SELECT 'cleaned', 0, value FROM {meta} WHERE name = {cleaned}


-- name: old
-- Published rows past their time.
SELECT seq FROM {outbox} FORCE INDEX (due) WHERE state = 'published' AND due_at <= {began}
ORDER BY due_at, seq LIMIT {limit} FOR UPDATE SKIP LOCKED


-- name: cleaned
INSERT INTO {meta} (name, value) VALUES ({cleaned}, {now}) ON DUPLICATE KEY UPDATE value = {now}


-- name: has_inbox
SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = {inbox}

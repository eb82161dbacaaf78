-- What a relay asks of MySQL and MariaDB. `-- name: x` starts statement x. The session is in READ COMMITTED, so that
-- each statement of a transaction sees what was committed before it, and locks the rows it names and no gaps.
--
-- {outbox}, {meta}       the tables
-- {now}, {began}         the clock when the expression is evaluated, and when the statement began
-- {owner}, {seqs} ...    literals
--
-- FORCE INDEX: for a list of numbers the optimizer would rather walk over the whole table, and wait for the locks of
-- others on the way.


-- name: before
-- The row before a candidate in its line, of those that have not left. Rows of one line go in their order, also between
-- relays that lease at the same time: what SKIP LOCKED passes over still stands before the others in its line.
(SELECT b.seq FROM {outbox} b FORCE INDEX (line) WHERE b.line = p.line AND b.seq < p.seq
 ORDER BY b.line DESC, b.seq DESC LIMIT 1)


-- name: fresh
SELECT p.seq, p.line, {place}
FROM {outbox} p FORCE INDEX (due)
WHERE p.state = 'pending' AND p.due_at = 0 AND p.seq > {after} AND (p.leased_until <= {began} OR p.owner = {owner})
{without}
ORDER BY p.seq LIMIT {limit} FOR UPDATE SKIP LOCKED


-- name: due
SELECT p.seq, p.line, {place}
FROM {outbox} p FORCE INDEX (due)
WHERE p.state = 'waiting' AND p.due_at <= {began} {without}
ORDER BY p.due_at, p.seq LIMIT {limit} FOR UPDATE SKIP LOCKED


-- name: holders
SELECT seq, state, due_at, {began} FROM {outbox} FORCE INDEX (PRIMARY) WHERE seq IN ({seqs})


-- name: defer
-- Behind a row that waits they wait as long, so that the next lease need not walk over them.
UPDATE {outbox} FORCE INDEX (PRIMARY) SET state = 'waiting', due_at = CASE seq {cases} END WHERE seq IN ({seqs})


-- name: take
-- Assignments run from left to right: `attempts` looks at the owner before. Repeated by its owner, it counts no attempt.
UPDATE {outbox} FORCE INDEX (PRIMARY) SET
    state = 'pending', due_at = 0, attempts = attempts + IF(owner <=> {owner}, 0, 1), leased_until = {now} + {span},
    owner = {owner}
WHERE seq IN ({seqs})


-- name: taken
SELECT seq, id, message_id, destination, ordering_key, type, headers, payload, content, trace_id, source, time, attempts
FROM {outbox} FORCE INDEX (PRIMARY) WHERE seq IN ({seqs}) ORDER BY seq


-- name: probe
-- Whether the table has what this release reads: asked once per connection.
SELECT seq, id, message_id, destination, ordering_key, line, type, headers, payload, content, trace_id, source, time,
       created_at, state, due_at, leased_until, owner, attempts, error, published_at
FROM {outbox} LIMIT 0


-- name: rights
-- Refused where this user may not relay. Explained, not run: that takes the same privileges.
EXPLAIN UPDATE {outbox} SET state = state WHERE FALSE;
EXPLAIN DELETE FROM {outbox} WHERE FALSE;
EXPLAIN INSERT INTO {meta} SELECT * FROM {meta} WHERE FALSE;
EXPLAIN UPDATE {meta} SET value = value WHERE FALSE


-- name: publish
UPDATE {outbox} FORCE INDEX (PRIMARY) SET
    state = 'published', due_at = {now} + {keep}, published_at = {now}, line = NULL, leased_until = 0, error = NULL
WHERE seq IN ({seqs}) AND owner = {owner} AND state = 'pending'


-- name: publish_and_delete
DELETE o FROM {outbox} o FORCE INDEX (PRIMARY)
WHERE o.seq IN ({seqs}) AND o.owner = {owner} AND o.state = 'pending'


-- name: settle
UPDATE ({rows}) i STRAIGHT_JOIN {outbox} o FORCE INDEX (PRIMARY) ON i.seq = o.seq SET
    o.due_at = IF(i.state = 'waiting', {now} + i.span, 0), o.leased_until = 0, o.attempts = o.attempts - i.refund,
    o.error = COALESCE(i.error, o.error), o.owner = NULL, o.state = i.state
WHERE o.owner = {owner} AND o.state = 'pending'


-- name: parked
SELECT seq, line FROM {outbox} WHERE state = 'parked' {chosen} ORDER BY due_at, seq LIMIT {limit} FOR UPDATE


-- name: unpark
UPDATE {outbox} FORCE INDEX (PRIMARY) SET state = 'pending', due_at = 0, attempts = 0, owner = NULL, leased_until = 0
WHERE seq IN ({seqs})


-- name: discard
DELETE o FROM {outbox} o FORCE INDEX (PRIMARY) WHERE o.seq IN ({seqs})


-- name: follow
-- Those that wait behind them are due at once; there are so many at most, the others come due by themselves.
UPDATE {outbox} FORCE INDEX (line) SET due_at = {now} WHERE state = 'waiting' AND line IN ({lines})
ORDER BY seq LIMIT {limit}


-- name: list
SELECT seq, id, message_id, destination, ordering_key, type, state, attempts, created_at, due_at, leased_until,
       published_at, error
FROM {outbox}
WHERE state = {state} AND (due_at > {due_at} OR (due_at = {due_at} AND seq > {seq}))
ORDER BY due_at, seq LIMIT {limit}


-- name: count
SELECT {state}, COUNT(*), MIN(created_at)
FROM (SELECT created_at FROM {outbox} WHERE state = {state} ORDER BY due_at, seq LIMIT {limit}) c


-- name: cleaned_at
SELECT 'cleaned', 0, value FROM {meta} WHERE name = {cleaned}


-- name: old
SELECT seq FROM {outbox} FORCE INDEX (due) WHERE state = 'published' AND due_at <= {began}
ORDER BY due_at, seq LIMIT {limit} FOR UPDATE SKIP LOCKED


-- name: cleaned
INSERT INTO {meta} (name, value) VALUES ({cleaned}, {now}) ON DUPLICATE KEY UPDATE value = {now}


-- name: has_inbox
SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = {inbox}

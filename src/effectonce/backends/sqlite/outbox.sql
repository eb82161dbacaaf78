-- The relay's statements for SQLite. `-- name: x` starts statement x. A lease and a settlement are transactions that hold
-- the write lock from the start, so that relays take turns by themselves.
--
-- {row_columns} are the fields of `contracts.outbox.OutboxRow`, {entry_columns} those of `OutboxEntry`.
--
-- INDEXED BY: by the primary key, which gives the same order, published rows would be walked over.


-- name: probe
-- Fails where the table lacks a column that this release reads. Sent once per connection.
SELECT seq, id, message_id, destination, ordering_key, line, type, headers, payload, content, trace_id, source, time,
       created_at, state, due_at, leased_until, owner, attempts, error, published_at
FROM {outbox} LIMIT 0;


-- name: idle
-- Whether there is nothing to lease. Sent first, since it needs no lock.
SELECT NOT EXISTS (
    SELECT 1 FROM {outbox} INDEXED BY {due_index}
    WHERE state = 'pending' AND due_at = 0 AND seq > :after AND (leased_until <= :now OR owner = :owner) AND {is_answering})
AND NOT EXISTS (
    SELECT 1 FROM {outbox} INDEXED BY {due_index} WHERE state = 'waiting' AND due_at <= :now AND {is_answering});


-- name: is_answering
-- A condition, not a statement: the row does not go to a queue that does not answer. Those are a JSON array.
destination NOT IN (SELECT value FROM json_each(:without))


-- name: before
-- An expression, not a statement: the unpublished row before a candidate in its line.
(SELECT b.seq FROM {outbox} b INDEXED BY {line_index} WHERE b.line = p.line AND b.seq < p.seq
 ORDER BY b.line DESC, b.seq DESC LIMIT 1)


-- name: fresh
-- Rows that are pending, and not leased by another relay: their lease may have ended.
SELECT p.seq, p.line, {before}
FROM {outbox} p INDEXED BY {due_index}
WHERE p.state = 'pending' AND p.due_at = 0 AND p.seq > :after AND (p.leased_until <= :now OR p.owner = :owner)
    AND {is_answering}
ORDER BY p.seq LIMIT :limit;


-- name: due
-- Rows whose retry is due.
SELECT p.seq, p.line, {before}
FROM {outbox} p INDEXED BY {due_index}
WHERE p.state = 'waiting' AND p.due_at <= :now AND {is_answering}
ORDER BY p.due_at, p.seq LIMIT :limit;


-- name: blocker
-- A row that others wait behind.
SELECT state, due_at FROM {outbox} WHERE seq = ?;


-- name: defer
-- A row behind a waiting one waits as long, so that the next lease does not read it again.
UPDATE {outbox} SET state = 'waiting', due_at = ? WHERE seq = ?;


-- name: take
-- Leases a row. Repeated by its owner, it counts no attempt.
UPDATE {outbox} SET
    state = 'pending', due_at = 0, attempts = attempts + (owner IS NOT :owner), leased_until = :until, owner = :owner
WHERE seq = :seq
RETURNING {row_columns};


-- name: publish
UPDATE {outbox} SET
    state = 'published', due_at = :now + :keep, published_at = :now, line = NULL, leased_until = 0, error = NULL
WHERE seq = :seq AND owner = :owner AND state = 'pending';


-- name: publish_and_delete
DELETE FROM {outbox} WHERE seq = :seq AND owner = :owner AND state = 'pending';


-- name: settle
UPDATE {outbox} SET
    state = :state, due_at = :due_at, leased_until = 0, owner = NULL, attempts = attempts - :refund,
    error = coalesce(:error, error)
WHERE seq = :seq AND owner = :owner AND state = 'pending';


-- name: parked
-- Parked rows: all of them, or those of a JSON array of numbers.
SELECT seq, line FROM {outbox}
WHERE state = 'parked' AND (:seqs IS NULL OR seq IN (SELECT value FROM json_each(:seqs)))
ORDER BY due_at, seq LIMIT :limit;


-- name: unpark
UPDATE {outbox} SET state = 'pending', due_at = 0, attempts = 0, owner = NULL, leased_until = 0 WHERE seq = ?;


-- name: discard
DELETE FROM {outbox} WHERE seq = ?;


-- name: follow
-- Rows that wait behind an unparked one are due at once: up to a limit, the others come due by themselves.
UPDATE {outbox} SET due_at = ? WHERE seq IN (
    SELECT seq FROM {outbox} WHERE line = ? AND state = 'waiting' ORDER BY seq LIMIT ?);


-- name: list
SELECT {entry_columns}
FROM {outbox} WHERE state = ? AND (due_at, seq) > (?, ?) ORDER BY due_at, seq LIMIT ?;


-- name: find
-- Rows of the :recent newest whose key, message id or ordering key is from :first up to before :end.
SELECT {entry_columns}
FROM (SELECT * FROM {outbox} ORDER BY seq DESC LIMIT :recent)
WHERE (id >= :first AND id < :end) OR (message_id >= :first AND message_id < :end)
   OR (ordering_key >= :first AND ordering_key < :end)
ORDER BY seq DESC LIMIT :limit;


-- name: count_up_to
SELECT count(*) FROM (SELECT 1 FROM {outbox} LIMIT ?);


-- name: count
SELECT count(*), min(created_at) FROM (
    SELECT created_at FROM {outbox} WHERE state = ? ORDER BY due_at, seq LIMIT ?);


-- name: old
SELECT seq FROM {outbox} INDEXED BY {due_index} WHERE state = 'published' AND due_at <= ?
ORDER BY due_at, seq LIMIT ?;


-- name: read_meta
SELECT value FROM {meta} WHERE name = ?;


-- name: write_meta
INSERT INTO {meta} (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;


-- name: has_inbox
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?;

-- The statements of the SQLite broker. Each is one atomic step: outside a transaction it is its own.

-- name: publish
INSERT INTO {messages} (queue, visible_at, id, ordering_key, headers, body)
VALUES (:queue,
        CASE WHEN EXISTS (SELECT * FROM {messages} WHERE queue = :queue AND ordering_key = :key) THEN NULL ELSE :now END,
        :id, :key, :headers, :body);

-- name: anything
SELECT 1 FROM {messages} WHERE queue = ? AND visible_at <= ? LIMIT 1;

-- name: take
-- Invisible to others until the end of the ack window.
UPDATE {messages} SET visible_at = ?, token = ?, attempts = attempts + 1
WHERE number IN (SELECT number FROM {messages} WHERE queue = ? AND visible_at <= ? ORDER BY visible_at, number LIMIT ?)
RETURNING number, attempts, id, ordering_key, headers, body;

-- name: show
-- To be delivered again from then on: another's delivery of it is left alone.
UPDATE {messages} SET visible_at = ?, token = NULL WHERE number = ? AND token = ?;

-- name: extend
UPDATE {messages} SET visible_at = ? WHERE number = ? AND token = ?;

-- name: drop
DELETE FROM {messages} WHERE number = ? AND token = ?;

-- name: bury
INSERT INTO {dead} (queue, id, ordering_key, headers, body)
SELECT queue, id, ordering_key, ?, body FROM {messages} WHERE number = ? AND token = ?;

-- name: next_of_key
UPDATE {messages} SET visible_at = ?
WHERE number = (SELECT min(number) FROM {messages} WHERE queue = ? AND ordering_key = ?) AND visible_at IS NULL;

-- name: browse
SELECT number, id, ordering_key, headers, body FROM {dead} WHERE queue = ? AND number > ? ORDER BY number LIMIT ?;

-- name: remove
DELETE FROM {dead} WHERE queue = ? AND number = ?;

-- name: count
SELECT count(*) FROM {dead} WHERE queue = ?;

-- The statements of the SQLite broker. Each is one atomic step: outside of a transaction it is its own.
-- `visible_at` is when a message may be delivered; NULL: an older one of its ordering key is before it.

-- name: publish
-- Visible from :visible_at on, unless a message of the same ordering key is still there.
INSERT INTO {messages} (queue, visible_at, id, ordering_key, headers, body)
VALUES (:queue,
        CASE WHEN EXISTS (SELECT 1 FROM {messages} WHERE queue = :queue AND ordering_key = :key) THEN NULL
             ELSE :visible_at END,
        :id, :key, :headers, :body);

-- name: has_visible
-- Whether a message could be taken now.
SELECT 1 FROM {messages} WHERE queue = ? AND visible_at <= ? LIMIT 1;

-- name: take
-- Takes messages: they are invisible to other consumers until the end of the ack window.
UPDATE {messages} SET visible_at = ?, token = ?, attempts = attempts + 1
WHERE number IN (SELECT number FROM {messages} WHERE queue = ? AND visible_at <= ? ORDER BY visible_at, number LIMIT ?)
RETURNING number, attempts, id, ordering_key, headers, body;

-- name: make_visible
-- Makes a message visible again, unless it was delivered to another consumer since (the token differs).
UPDATE {messages} SET visible_at = ?, token = NULL WHERE number = ? AND token = ?;

-- name: extend
-- Moves the end of the ack window.
UPDATE {messages} SET visible_at = ? WHERE number = ? AND token = ?;

-- name: delete
-- Acks: the message is done.
DELETE FROM {messages} WHERE number = ? AND token = ?;

-- name: copy_to_dead_letters
-- Copies a message to the dead letters; `delete` follows in the same transaction.
INSERT INTO {dead} (queue, id, ordering_key, headers, body)
SELECT queue, id, ordering_key, ?, body FROM {messages} WHERE number = ? AND token = ?;

-- name: make_next_visible
-- Makes the next message of an ordering key visible.
UPDATE {messages} SET visible_at = ?
WHERE number = (SELECT min(number) FROM {messages} WHERE queue = ? AND ordering_key = ?) AND visible_at IS NULL;

-- name: browse
SELECT number, id, ordering_key, headers, body FROM {dead} WHERE queue = ? AND number > ? ORDER BY number LIMIT ?;

-- name: remove
DELETE FROM {dead} WHERE queue = ? AND number = ?;

-- name: count
SELECT count(*) FROM {dead} WHERE queue = ?;

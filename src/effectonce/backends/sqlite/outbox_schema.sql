-- The outbox: one row is one message that a relay shall publish. SQLite 3.35 or later. Safe to run twice.
--
-- A message is inserted by its sender's transaction, leased by a relay, and published. The lease changes no column
-- that an index holds. Times are microseconds since the epoch, on the machine's clock.

CREATE TABLE IF NOT EXISTS {outbox} (
    seq          INTEGER PRIMARY KEY,               -- the order of insertion
    id           TEXT    NOT NULL,                  -- the message's key: what duplicates share
    message_id   TEXT    NOT NULL,
    destination  TEXT    NOT NULL,                  -- the queue
    ordering_key TEXT,
    line         INTEGER,                           -- a hash of the ordering key; NULL once published
    type         TEXT    NOT NULL,
    headers      TEXT    NOT NULL,                  -- a JSON object
    payload      BLOB    NOT NULL,
    content      TEXT    NOT NULL,                  -- of the payload: json, bytes
    trace_id     TEXT,
    source       TEXT    NOT NULL DEFAULT '',
    time         TEXT,                              -- RFC 3339
    created_at   INTEGER NOT NULL,
    state        TEXT    NOT NULL DEFAULT 'pending',  -- pending | waiting | parked | published
    due_at       INTEGER NOT NULL DEFAULT 0,        -- waiting: to retry it; published: to delete it
    leased_until INTEGER NOT NULL DEFAULT 0,        -- pending: a relay's lease holds until then
    owner        BLOB,                              -- of the lease
    attempts     INTEGER NOT NULL DEFAULT 0,
    error        TEXT,                              -- of the last attempt that failed
    published_at INTEGER
);

-- Rows to send, in order; rows to retry and rows to delete, by time.
CREATE INDEX IF NOT EXISTS {outbox_due} ON {on_outbox} (state, due_at, seq);

-- The unpublished rows of each line, in their order.
CREATE INDEX IF NOT EXISTS {outbox_line} ON {on_outbox} (line, seq) WHERE line IS NOT NULL;

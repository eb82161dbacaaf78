-- The outbox: one row is one message that a relay shall publish. MySQL >= 8.0 and MariaDB >= 10.6. Safe to run twice.
--
-- A message is inserted by its sender's transaction, leased by a relay, and published. The lease changes no column
-- that an index holds. Times are microseconds since the epoch in UTC, on this server's clock.

CREATE TABLE IF NOT EXISTS {outbox} (
    seq          BIGINT     NOT NULL AUTO_INCREMENT,        -- the order of insertion
    id           TEXT       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,  -- the message's key
    message_id   TEXT       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    destination  TEXT       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,  -- the queue
    ordering_key TEXT       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    line         BIGINT     NULL,                           -- a hash of the ordering key; NULL once published
    type         TEXT       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    headers      MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,  -- a JSON object
    payload      LONGBLOB   NOT NULL,
    content      VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,      -- of the payload: json, bytes
    trace_id     TEXT       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    source       TEXT       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    time         VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NULL,         -- RFC 3339
    created_at   BIGINT     NOT NULL,
    -- pending | waiting | parked | published
    state        VARCHAR(9) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'pending',
    due_at       BIGINT     NOT NULL DEFAULT 0,             -- waiting: to retry it; published: to delete it
    leased_until BIGINT     NOT NULL DEFAULT 0,             -- pending: a relay's lease holds until then
    owner        VARBINARY(16) NULL,                        -- of the lease
    attempts     INT        NOT NULL DEFAULT 0,
    error        TEXT       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,      -- of the last attempt that failed
    published_at BIGINT     NULL,
    PRIMARY KEY (seq),
    -- Rows to send, in order; rows to retry and rows to delete, by time.
    KEY due (state, due_at, seq),
    -- The unpublished rows of each line, in their order.
    KEY line (line, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

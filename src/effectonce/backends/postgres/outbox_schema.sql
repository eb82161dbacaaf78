-- The outbox: one row is one message that a relay shall publish. PostgreSQL 13 or later. Safe to run twice.
--
-- A message is inserted by its sender's transaction, leased by a relay, and published. The lease is the cheapest of
-- the three steps by one rule: no index holds a column that it changes, so that it is a HOT update and writes to no
-- index. fillfactor leaves room for it: more than half of each page.
--
-- Times are microseconds since the epoch, on this server's clock.

CREATE TABLE IF NOT EXISTS {outbox} (
    seq          bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the order of insertion
    id           text COLLATE "C" NOT NULL,                     -- the message's key: what duplicates share
    message_id   text COLLATE "C" NOT NULL,
    destination  text COLLATE "C" NOT NULL,                     -- the queue
    ordering_key text COLLATE "C",
    line         bigint,                                        -- a hash of the ordering key; NULL once published
    type         text COLLATE "C" NOT NULL,
    headers      text COLLATE "C" NOT NULL,                     -- a JSON object
    payload      bytea            NOT NULL,
    content      text COLLATE "C" NOT NULL,                     -- of the payload: json, bytes
    trace_id     text COLLATE "C",
    source       text COLLATE "C" NOT NULL DEFAULT '',
    time         text COLLATE "C",                              -- RFC 3339
    created_at   bigint           NOT NULL,
    state        text COLLATE "C" NOT NULL DEFAULT 'pending',   -- pending, waiting, parked, published
    due_at       bigint           NOT NULL DEFAULT 0,           -- waiting: to retry it; published: to delete it
    leased_until bigint           NOT NULL DEFAULT 0,           -- pending: a relay's lease holds until then
    owner        bytea,                                         -- of the lease
    attempts     integer          NOT NULL DEFAULT 0,
    error        text COLLATE "C",                              -- of the last attempt that failed
    published_at bigint
) WITH (fillfactor = 45);

-- Rows to send, in order; rows to retry and rows to delete, by time. Rows of the other kinds are never read, however
-- many there are.
CREATE INDEX IF NOT EXISTS {outbox_due} ON {on_outbox} (state, due_at, seq);

-- The unpublished rows of each line, in their order.
CREATE INDEX IF NOT EXISTS {outbox_line} ON {on_outbox} (line, seq) WHERE line IS NOT NULL;

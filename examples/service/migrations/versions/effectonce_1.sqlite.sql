-- effectonce on SQLite, schema version 1. Created by first use; every statement may be run again.
-- Times are microseconds since the epoch on the machine's clock.

CREATE TABLE IF NOT EXISTS effectonce_records (
    -- When the sweep shall next visit this row: milliseconds since the epoch, times 2^20, plus a number that
    -- makes it unique. Rows therefore lie in the order in which they expire, and the sweep reads one end of the
    -- table: there is no expiry index to keep up to date on every claim and completion.
    due            INTEGER PRIMARY KEY,
    scope          TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    state          TEXT    NOT NULL,  -- claimed | done | failed | free | in_doubt (the indexes use this order)
    owner          BLOB    NOT NULL,  -- 16 random bytes of the claim that holds it; empty: none
    token          INTEGER NOT NULL,  -- grows with every claim
    attempts       INTEGER NOT NULL,
    generation     INTEGER NOT NULL,
    lapsed         INTEGER NOT NULL,  -- 1: this claim was taken from a lease that had ended
    doubt_on_lapse INTEGER NOT NULL,  -- 1: the end of this lease means in_doubt
    lease_until    INTEGER,           -- of claimed
    expires_at     INTEGER,           -- NULL: never
    created_at     INTEGER NOT NULL,
    changed_at     INTEGER NOT NULL,
    fingerprint    BLOB,
    result         BLOB,
    error          BLOB,
    note           BLOB,              -- how far an intent or a saga has come
    UNIQUE (scope, key)
);

-- The four indexes below are partial, and an ordinary claim and completion (claimed, then done) is in none of
-- them. Conditions are plain comparisons: with an IN list, claim + completion measured up to a third slower.

-- The states that operators ask for: failed, free and in_doubt, all that sorts after 'done'. One sweep changes many rows
-- at one time, so lists need scope and key to tell them apart.
CREATE INDEX IF NOT EXISTS effectonce_attention ON effectonce_records (state, changed_at, scope, key) WHERE state > 'done';

-- Leases whose end the sweep has to act upon.
CREATE INDEX IF NOT EXISTS effectonce_leases ON effectonce_records (lease_until)
    WHERE doubt_on_lapse = 1 AND state = 'claimed';

-- Rows that expire before the sweep would visit them: settled with a shorter retention than claimed.
CREATE INDEX IF NOT EXISTS effectonce_early ON effectonce_records (expires_at) WHERE expires_at / 1000 < due >> 20;

-- Unfinished intents and sagas, which recovery may have to resume.
CREATE INDEX IF NOT EXISTS effectonce_unfinished ON effectonce_records (scope, key)
    WHERE note IS NOT NULL AND (state = 'claimed' OR state = 'free');

CREATE TABLE IF NOT EXISTS effectonce_meta (
    name  TEXT PRIMARY KEY,  -- schema, swept_at
    value INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO effectonce_meta (name, value) VALUES ('schema', 1) ON CONFLICT (name) DO NOTHING;

-- effectonce's inbox in SQLite (3.35 or later). Safe to run twice.
-- Times are microseconds since the epoch, on the machine's clock.

-- One row per handled message, written by the transaction that has the message's effect.
CREATE TABLE IF NOT EXISTS "effectonce_inbox" (
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint BLOB,               -- of the payload; NULL: not compared
    result      BLOB,               -- what a duplicate gets; NULL: none is stored
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,   -- the earliest time of its purge; until then it is a duplicate
    PRIMARY KEY (scope, key)
);

CREATE INDEX IF NOT EXISTS "effectonce_inbox_expiry" ON "effectonce_inbox" (expires_at);

-- How often handlers have started on a message that is not handled yet: those with max_attempts, and those of workers
-- on a message that was delivered before, or has failed.
CREATE TABLE IF NOT EXISTS "effectonce_inbox_starts" (
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    unreported  INTEGER NOT NULL,   -- since the last outcome: the last one may run, or have ended its process
    reported    INTEGER NOT NULL,   -- before that
    last_error  TEXT,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
);

CREATE INDEX IF NOT EXISTS "effectonce_inbox_starts_expiry" ON "effectonce_inbox_starts" (expires_at);

-- The outbox: one row is one message that a relay shall publish. SQLite 3.35 or later. Safe to run twice.
--
-- A message is inserted by its sender's transaction, leased by a relay, and published. The lease changes no column
-- that an index holds. Times are microseconds since the epoch, on the machine's clock.

CREATE TABLE IF NOT EXISTS "effectonce_outbox" (
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
CREATE INDEX IF NOT EXISTS "effectonce_outbox_due" ON "effectonce_outbox" (state, due_at, seq);

-- The unpublished rows of each line, in their order.
CREATE INDEX IF NOT EXISTS "effectonce_outbox_line" ON "effectonce_outbox" (line, seq) WHERE line IS NOT NULL;

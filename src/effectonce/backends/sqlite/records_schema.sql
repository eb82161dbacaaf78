-- effectonce on SQLite, schema version 1. Created by first use; every statement may be run again.
-- Times are microseconds since the epoch on the machine's clock.

CREATE TABLE IF NOT EXISTS {records} (
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
CREATE INDEX IF NOT EXISTS {prefix}_attention ON {records} (state, changed_at, scope, key) WHERE state > 'done';

-- Leases whose end the sweep has to act upon.
CREATE INDEX IF NOT EXISTS {prefix}_leases ON {records} (lease_until)
    WHERE doubt_on_lapse = 1 AND state = 'claimed';

-- Rows that expire before the sweep would visit them: settled with a shorter retention than claimed.
CREATE INDEX IF NOT EXISTS {prefix}_early ON {records} (expires_at) WHERE expires_at / 1000 < due >> 20;

-- Unfinished intents and sagas, which recovery may have to resume.
CREATE INDEX IF NOT EXISTS {prefix}_unfinished ON {records} (scope, key)
    WHERE note IS NOT NULL AND (state = 'claimed' OR state = 'free');

CREATE TABLE IF NOT EXISTS {meta} (
    name  TEXT PRIMARY KEY,  -- schema, swept_at
    value INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO {meta} (name, value) VALUES ('schema', 1) ON CONFLICT (name) DO NOTHING;

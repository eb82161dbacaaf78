-- effectonce's inbox in SQLite (3.35 or later). Safe to run twice.
-- Times are microseconds since the epoch, on the machine's clock.

-- One row per handled message, written by the transaction that has the message's effect.
CREATE TABLE IF NOT EXISTS {inbox} (
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint BLOB,               -- of the payload; NULL: not compared
    result      BLOB,               -- what a duplicate gets; NULL: none is stored
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,   -- the earliest time of its purge; until then it is a duplicate
    PRIMARY KEY (scope, key)
);

CREATE INDEX IF NOT EXISTS {inbox_expiry} ON {on_inbox} (expires_at);

-- How often a handler with max_attempts has started on a message that is not handled yet.
CREATE TABLE IF NOT EXISTS {attempts} (
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
);

CREATE INDEX IF NOT EXISTS {attempts_expiry} ON {on_attempts} (expires_at);

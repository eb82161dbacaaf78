-- effectonce's inbox in PostgreSQL (13 or later). Safe to run twice.
-- Times are microseconds since the epoch, on this server's clock.

-- One row per handled message, written by the transaction that has the message's effect.
CREATE TABLE IF NOT EXISTS {inbox} (
    scope       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    fingerprint bytea,                       -- of the payload; NULL: not compared
    result      bytea,                       -- what a duplicate gets; NULL: none is stored
    created_at  bigint           NOT NULL,
    expires_at  bigint           NOT NULL,   -- the earliest time of its purge; until then it is a duplicate
    PRIMARY KEY (scope, key)
);

CREATE INDEX IF NOT EXISTS {inbox_expiry} ON {on_inbox} (expires_at);

-- How often a handler with max_attempts has started on a message that is not handled yet.
CREATE TABLE IF NOT EXISTS {attempts} (
    scope       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    attempts    integer          NOT NULL,
    expires_at  bigint           NOT NULL,
    PRIMARY KEY (scope, key)
);

CREATE INDEX IF NOT EXISTS {attempts_expiry} ON {on_attempts} (expires_at);

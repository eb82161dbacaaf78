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

-- How often handlers have started on a message that is not handled yet: those with max_attempts, and those of workers
-- on a message that was delivered before, or has failed.
CREATE TABLE IF NOT EXISTS {starts} (
    scope       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    unreported  integer          NOT NULL,   -- since the last outcome: the last one may run, or have ended its process
    reported    integer          NOT NULL,   -- before that
    last_error  text,
    expires_at  bigint           NOT NULL,
    PRIMARY KEY (scope, key)
);

CREATE INDEX IF NOT EXISTS {starts_expiry} ON {on_starts} (expires_at);

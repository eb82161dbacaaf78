-- Queues on SQLite, schema version 1. Created by first use; every statement may be run again.
-- Times are microseconds since the epoch on the machine's clock.

CREATE TABLE IF NOT EXISTS {messages} (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of publishing; never used twice
    queue        TEXT    NOT NULL,
    visible_at   INTEGER,                    -- NULL: behind another one of its ordering key
    token        BLOB,                       -- of the last delivery; NULL: never delivered, or given back
    attempts     INTEGER NOT NULL DEFAULT 0,
    id           TEXT    NOT NULL,
    ordering_key TEXT,
    headers      TEXT    NOT NULL,           -- JSON
    body         BLOB    NOT NULL
);

-- What to deliver next. Only the oldest one of an ordering key is here, so that a long line behind it costs nothing.
CREATE INDEX IF NOT EXISTS {prefix}_due ON {messages} (queue, visible_at, number) WHERE visible_at IS NOT NULL;

-- Who is next of an ordering key.
CREATE INDEX IF NOT EXISTS {prefix}_line ON {messages} (queue, ordering_key, number) WHERE ordering_key IS NOT NULL;

CREATE TABLE IF NOT EXISTS {dead} (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of giving up
    queue        TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    ordering_key TEXT,
    headers      TEXT    NOT NULL,           -- JSON, with the reason
    body         BLOB    NOT NULL
);

CREATE INDEX IF NOT EXISTS {prefix}_dead_of ON {dead} (queue, number);

CREATE TABLE IF NOT EXISTS {version} (schema INTEGER NOT NULL);

INSERT INTO {version} (schema) SELECT 1 WHERE NOT EXISTS (SELECT * FROM {version});

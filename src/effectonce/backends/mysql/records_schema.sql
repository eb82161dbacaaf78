-- The schema of effectonce on MySQL >= 8.0 and MariaDB >= 10.6, version 1.
-- Every statement may be run twice, and by two processes at once.

-- One row is one record, of the operation (scope, key).
-- Times are microseconds since the epoch in UTC, on this server's clock; spans are microseconds.
CREATE TABLE IF NOT EXISTS {records} (
    -- SHA-256 of the length-prefixed scope and key. Not the texts themselves: a collation would merge
    -- `Order:a` and `ORDER:A `, and so would a comparison that pads with spaces.
    id             BINARY(32)     NOT NULL,
    scope          VARCHAR(512)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `key`          VARCHAR(4096)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    -- claimed | done | failed | in_doubt | free
    state          VARCHAR(8)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- The claim that holds the record, or held it last. Every settlement compares owner and token.
    owner          VARBINARY(16)  NOT NULL,
    token          BIGINT         NOT NULL,
    attempts       INT            NOT NULL,
    generation     INT            NOT NULL DEFAULT 0,
    -- 1: this claim was taken from a lease that had lapsed.
    lapsed         TINYINT        NOT NULL DEFAULT 0,
    -- What the end of the lease means: 0 the next claim runs, 1 the record is in doubt.
    doubt_on_lapse TINYINT        NOT NULL DEFAULT 0,
    -- 33 bytes for each fingerprint algorithm of the claim that wrote it; the first is the record's.
    fingerprint    VARBINARY(990) NOT NULL DEFAULT '',
    -- NULL where no claim holds a lease.
    lease_until    BIGINT         NULL,
    -- NULL where it never expires: in doubt, or claimed with doubt_on_lapse. Past it, the row is absent.
    expires_at     BIGINT         NULL,
    created_at     BIGINT         NOT NULL,
    changed_at     BIGINT         NOT NULL,
    -- The options of the last claim that reached the row. They are columns because ON DUPLICATE KEY UPDATE sees
    -- nothing of a new row but its columns.
    lease          BIGINT         NOT NULL DEFAULT 0,
    retention      BIGINT         NOT NULL DEFAULT 0,
    max_attempts   INT            NOT NULL DEFAULT 0,
    -- A variable of the statement `claim`, its first assignment. It says nothing about the record.
    verdict        TINYINT        NOT NULL DEFAULT 0,
    result         LONGBLOB       NULL,
    error          LONGBLOB       NULL,
    -- How far an intent or a saga has come.
    note           LONGBLOB       NULL,
    PRIMARY KEY (id),
    -- The sweeper: expired rows per state; lapsed claims that turn to doubt are (claimed, NULL, lease_until).
    KEY due (state, expires_at, lease_until),
    -- Lists, newest change first; the oldest doubt.
    KEY recent (state, changed_at),
    -- Lists of one scope. Neither column changes in a record's life, so it is written once.
    KEY scoped (scope, created_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS {meta} (
    name  VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    value BIGINT      NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO {meta} (name, value) VALUES ('schema', 1);

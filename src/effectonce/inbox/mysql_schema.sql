-- effectonce's inbox in MySQL >= 8.0 and MariaDB >= 10.6. Safe to run twice.
-- Times are microseconds since the epoch, on this server's clock.

-- One row per handled message, written by the transaction that has the message's effect.
CREATE TABLE IF NOT EXISTS {inbox} (
    -- SHA-256 of the length-prefixed scope and key. Not the texts themselves: a collation would merge
    -- `Order:a` and `ORDER:A `, and so would a comparison that pads with spaces.
    id          BINARY(32)    NOT NULL,
    scope       VARCHAR(255)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `key`       VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    -- Random, sent by the statement that inserted the row. Reading it back tells who was first; affected rows do not.
    nonce       BINARY(16)    NOT NULL,
    -- Of the payload; NULL: not compared.
    fingerprint VARBINARY(33) NULL,
    -- What a duplicate gets; NULL: none is stored.
    result      LONGBLOB      NULL,
    created_at  BIGINT        NOT NULL,
    -- The earliest time of its purge; until then the key is a duplicate.
    expires_at  BIGINT        NOT NULL,
    PRIMARY KEY (id),
    KEY expiry (expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- How often handlers have started on a message that is not handled yet: those with max_attempts, and those of workers
-- on a message that was delivered before, or has failed.
CREATE TABLE IF NOT EXISTS {starts} (
    id          BINARY(32)    NOT NULL,
    scope       VARCHAR(255)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `key`       VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    -- Since the last outcome: the last one may run, or have ended its process.
    unreported  INT           NOT NULL,
    -- Before that.
    reported    INT           NOT NULL,
    last_error  VARCHAR(400)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    expires_at  BIGINT        NOT NULL,
    PRIMARY KEY (id),
    KEY expiry (expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

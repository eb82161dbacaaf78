-- Mail of users, not of a consumer.
CREATE TABLE inbox (
    id SERIAL PRIMARY KEY,
    message_id INTEGER NOT NULL REFERENCES messages (id),
    user_id INTEGER NOT NULL,
    is_read BOOLEAN NOT NULL DEFAULT FALSE
);
-- A warehouse.
CREATE TABLE analytics.processed_events (
    event_id BIGINT NOT NULL,
    user_id BIGINT,
    event_name VARCHAR(100),
    revenue NUMERIC(12, 2),
    event_time TIMESTAMP
);
CREATE TEMPORARY TABLE message_dedup (message_id BIGINT, first_seen TIMESTAMP);
CREATE TABLE dedup AS SELECT DISTINCT ON (event_id) * FROM raw_events;
CREATE TABLE dedup_orders (order_id BIGINT, placed_at TIMESTAMP);
-- The key is the whole row.
CREATE TABLE processed_ids (id TEXT PRIMARY KEY);
-- Named by a digest of scope and key.
CREATE TABLE idempotency_records (
    id BYTEA PRIMARY KEY,
    scope TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    expires_at TIMESTAMPTZ
);
-- The one of brandur.org: its key comes later.
CREATE TABLE idempotency_keys (
    id BIGSERIAL PRIMARY KEY,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    idempotency_key TEXT NOT NULL CHECK (char_length(idempotency_key) <= 100),
    last_run_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    locked_at TIMESTAMPTZ DEFAULT now(),
    request_method TEXT NOT NULL,
    user_id BIGINT NOT NULL
);
CREATE UNIQUE INDEX idempotency_keys_user_id_idempotency_key ON idempotency_keys (user_id, idempotency_key);
-- As pg_dump writes it.
CREATE TABLE public.processed_messages (
    message_id character varying(64) NOT NULL,
    processed_at timestamp with time zone
);
ALTER TABLE ONLY public.processed_messages
    ADD CONSTRAINT processed_messages_pkey PRIMARY KEY (message_id);
-- Several changes in one statement.
CREATE TABLE consumed_events (
    id BIGSERIAL PRIMARY KEY,
    event_id TEXT NOT NULL
);
ALTER TABLE consumed_events
    ADD COLUMN consumer TEXT,
    ADD CONSTRAINT consumed_once UNIQUE (consumer, event_id);
-- Spanner
CREATE TABLE handled_messages (
    message_id STRING(36) NOT NULL,
    handled_at TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
) PRIMARY KEY (message_id);
-- ClickHouse
CREATE TABLE seen_events (event_id String, seen_at DateTime) ENGINE = ReplacingMergeTree ORDER BY event_id;
-- CREATE TABLE handled_requests (id BIGSERIAL PRIMARY KEY, request_id TEXT);
/* CREATE TABLE handled_jobs (id BIGSERIAL PRIMARY KEY, job_id TEXT); */
CREATE TABLE outbox (
    id BIGSERIAL PRIMARY KEY,
    message_id UUID NOT NULL DEFAULT gen_random_uuid(),
    payload JSONB NOT NULL,
    published_at TIMESTAMPTZ
);
CREATE TABLE webhook_events (
    id BIGSERIAL PRIMARY KEY,
    event_id TEXT,
    payload JSONB NOT NULL,
    received_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

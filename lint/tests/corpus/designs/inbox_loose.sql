-- The inbox of the billing service.
CREATE TABLE IF NOT EXISTS processed_messages (
    id           BIGSERIAL PRIMARY KEY,
    message_id   VARCHAR(64) NOT NULL,
    consumer     VARCHAR(100) NOT NULL,
    processed_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE INDEX processed_messages_by_id ON processed_messages (message_id);

create table billing.inbox_messages (
    message_id uuid not null,
    message_type text not null,
    payload jsonb not null,
    received_at timestamptz not null,
    processed_at timestamptz
);

CREATE TABLE handled_events (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    event_id TEXT NOT NULL,
    handler TEXT NOT NULL,
    handled_at TIMESTAMP NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, message_id TEXT, total NUMERIC NOT NULL);

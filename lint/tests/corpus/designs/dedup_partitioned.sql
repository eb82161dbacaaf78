-- PostgreSQL wants the partition's column in every key, so this one keeps nothing apart.
CREATE TABLE inbox (
    message_id  text        NOT NULL,
    consumer    text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id, received_at)
) PARTITION BY RANGE (received_at);

-- By a bucket that the key itself says (UUIDv7), it does.
CREATE TABLE seen_messages (
    message_id uuid NOT NULL,
    bucket     date NOT NULL,
    seen_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (message_id, bucket)
) PARTITION BY RANGE (bucket);

CREATE TABLE processed_webhooks (
    id uuid DEFAULT gen_random_uuid() PRIMARY KEY,
    webhook_id text NOT NULL,
    provider text NOT NULL,
    created_at timestamptz DEFAULT CURRENT_TIMESTAMP
);

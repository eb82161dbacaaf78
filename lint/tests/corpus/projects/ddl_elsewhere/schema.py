# ruff: noqa
TABLES = """
CREATE TABLE handled_messages (message_id text NOT NULL, at timestamptz DEFAULT now());
CREATE TABLE wallets (id text PRIMARY KEY, coins bigint NOT NULL DEFAULT 0);
"""

"""SQLite: records, the outbox and queues in one file."""

"""PostgreSQL: records and the outbox."""

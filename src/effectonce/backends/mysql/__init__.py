"""MySQL and MariaDB: records and the outbox."""

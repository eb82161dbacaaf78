"""The relay, which publishes the rows of an outbox to a broker."""

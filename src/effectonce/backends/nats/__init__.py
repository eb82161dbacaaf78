"""NATS JetStream: the broker, over nats-py."""

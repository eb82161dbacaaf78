"""Kafka: the broker, over confluent-kafka."""

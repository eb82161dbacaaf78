"""RabbitMQ: the broker, and the AMQP 0-9-1 client under it."""

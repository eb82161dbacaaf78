"""RabbitMQ: an AMQP 0-9-1 client, and the broker on top of it."""

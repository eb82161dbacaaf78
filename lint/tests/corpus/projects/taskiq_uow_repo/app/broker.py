# ruff: noqa
from taskiq_aio_pika import AioPikaBroker
broker = AioPikaBroker("amqp://")

# ruff: noqa
# expect file: P11
from kombu import Connection, Queue
from kombu.mixins import ConsumerMixin

import psycopg


class Worker(ConsumerMixin):
    def __init__(self, connection):
        self.connection = connection

    def get_consumers(self, Consumer, channel):
        return [Consumer(queues=[Queue("likes")], callbacks=[self.liked])]

    def liked(self, body, message):
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE posts SET likes = likes + 1 WHERE id = %s", (body["post"],))
        message.ack()


with Connection("amqp://") as connection:
    Worker(connection).run()

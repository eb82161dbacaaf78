# ruff: noqa
# expect file: EO201
import psycopg
from faststream import AckPolicy
from faststream.kafka import KafkaBroker

broker = KafkaBroker()


@broker.subscriber("names", group_id="n", ack_policy=AckPolicy.ACK_FIRST)
def rename(user: str, name: str):
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE users SET name = %s WHERE id = %s", (name, user))

# ruff: noqa
# expect file: P11
import json
from dataclasses import dataclass
from functools import singledispatch

import psycopg
from kafka import KafkaConsumer

conn = psycopg.connect("dbname=x", autocommit=True)


@dataclass
class Deposited:
    account: str
    cents: int


@singledispatch
def apply(event):
    raise NotImplementedError


@apply.register
def _(event: Deposited):
    conn.execute("UPDATE accounts SET cents = cents + %s WHERE id = %s", (event.cents, event.account))


def main():
    consumer = KafkaConsumer("accounts", group_id="a", enable_auto_commit=False)
    for record in consumer:
        apply(Deposited(**json.loads(record.value)))
        consumer.commit()

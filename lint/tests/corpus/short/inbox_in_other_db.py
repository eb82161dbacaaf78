# ruff: noqa
# expect file: EO102
import json
import sqlite3

import psycopg
from kafka import KafkaConsumer

local = sqlite3.connect("seen.db")
bank = psycopg.connect("dbname=bank")


def first(key):
    with local:
        return local.execute("INSERT OR IGNORE INTO seen (key) VALUES (?)", (key,)).rowcount == 1


def main():
    consumer = KafkaConsumer("moves", group_id="m", enable_auto_commit=False)
    for record in consumer:
        move = json.loads(record.value)
        if first(move["move_id"]):
            with bank.transaction():
                bank.execute("UPDATE accounts SET cents = cents + %s WHERE id = %s", (move["cents"], move["account"]))
        consumer.commit()

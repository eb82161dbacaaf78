# ruff: noqa
# expect file: P11
import json

import clickhouse_connect
from kafka import KafkaConsumer

client = clickhouse_connect.get_client(host="ch")


def main():
    for record in KafkaConsumer("clicks", group_id="ch", enable_auto_commit=False):
        click = json.loads(record.value)
        client.insert("clicks", [[click["at"], click["page"]]], column_names=["at", "page"])

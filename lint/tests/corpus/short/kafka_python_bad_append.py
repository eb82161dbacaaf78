# ruff: noqa
# expect file: P11
import csv
import json
from pathlib import Path

from kafka import KafkaConsumer

OUT = Path("/var/data/orders.csv")


def main() -> None:
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=["localhost:9092"],
        group_id="export",
        enable_auto_commit=False,
        value_deserializer=lambda raw: json.loads(raw.decode("utf-8")),
    )
    for message in consumer:
        with OUT.open("a", newline="") as fh:
            csv.writer(fh).writerow([message.value["id"], message.value["total"]])
        consumer.commit()


main()

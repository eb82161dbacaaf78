# ruff: noqa
# expect file: P11
import json

import asyncpg
from aiokafka import AIOKafkaConsumer


async def store(conn, rows):
    await conn.executemany("INSERT INTO clicks (page, at) VALUES ($1, $2)", rows)


async def main():
    conn = await asyncpg.connect()
    consumer = AIOKafkaConsumer("clicks", group_id="c", enable_auto_commit=False)
    await consumer.start()
    while True:
        batches = await consumer.getmany(timeout_ms=500, max_records=500)
        rows = []
        for partition, records in batches.items():
            for record in records:
                click = json.loads(record.value)
                rows.append((click["page"], click["at"]))
        if rows:
            await store(conn, rows)
        await consumer.commit()

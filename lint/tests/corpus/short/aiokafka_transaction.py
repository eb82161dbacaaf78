# ruff: noqa
# expect file: clean
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
async def main():
    consumer = AIOKafkaConsumer("a", group_id="g", enable_auto_commit=False)
    producer = AIOKafkaProducer(transactional_id="t")
    await consumer.start(); await producer.start()
    async for m in consumer:
        async with producer.transaction():
            await producer.send("b", m.value)
            await producer.send_offsets_to_transaction({}, "g")

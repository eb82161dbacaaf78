# ruff: noqa
# expect file: clean
from aiokafka import AIOKafkaConsumer
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

app = FastAPI()


@app.websocket("/ws/alerts")
async def alerts(websocket: WebSocket):
    await websocket.accept()
    consumer = AIOKafkaConsumer("alerts", group_id=None)
    await consumer.start()
    try:
        async for msg in consumer:
            await websocket.send_text(msg.value.decode())
    except WebSocketDisconnect:
        pass
    finally:
        await consumer.stop()

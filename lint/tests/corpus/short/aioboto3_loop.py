# ruff: noqa
# expect file: P11
import asyncio, json
import aioboto3
import httpx
async def main():
    session = aioboto3.Session()
    async with session.client("sqs") as sqs:
        while True:
            resp = await sqs.receive_message(QueueUrl="q", WaitTimeSeconds=20)
            for m in resp.get("Messages", []):
                await handle(json.loads(m["Body"]))
                await sqs.delete_message(QueueUrl="q", ReceiptHandle=m["ReceiptHandle"])
async def handle(d):
    async with httpx.AsyncClient() as c:
        r = await c.post("https://x.example/pay", json=d)
        r.raise_for_status()

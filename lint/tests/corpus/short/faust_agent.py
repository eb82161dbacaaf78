# ruff: noqa
# expect file: P11
import faust

app = faust.App("hits", broker="kafka://k")
topic = app.topic("hits")
table = app.Table("hits", default=int)


@app.agent(topic)
async def count(hits):
    import httpx

    async for hit in hits:
        async with httpx.AsyncClient() as client:
            await client.post("https://billing.example/usage", json={"page": hit["page"]})

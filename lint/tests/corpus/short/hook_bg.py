# ruff: noqa
# expect file: EO201, P11
from fastapi import FastAPI, BackgroundTasks
import httpx
app = FastAPI()
async def fulfil(d):
    async with httpx.AsyncClient() as c:
        await c.post("https://a.example/fulfil", json=d)
@app.post("/webhooks/pay")
async def h(d: dict, background_tasks: BackgroundTasks):
    background_tasks.add_task(fulfil, d)
    return {"ok": True}

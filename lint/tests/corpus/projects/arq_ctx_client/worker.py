# ruff: noqa
# expect file: P11
import os
import httpx
from arq.connections import RedisSettings

async def startup(ctx):
    ctx["http"] = httpx.AsyncClient(base_url=os.environ["CRM"], timeout=5)

async def shutdown(ctx):
    await ctx["http"].aclose()

async def sync_contact(ctx, contact_id: int, fields: dict):
    resp = await ctx["http"].post("/v1/activities", json={"contact": contact_id, **fields})
    resp.raise_for_status()

class WorkerSettings:
    functions = [sync_contact]
    on_startup = startup
    on_shutdown = shutdown
    redis_settings = RedisSettings()

# ruff: noqa
# expect file: P11
import os

import asyncpg
from aiohttp import web


async def parcel_scanned(request):
    data = await request.json()
    async with request.app["pool"].acquire() as conn:
        await conn.execute("UPDATE parcels SET scans = scans + 1 WHERE id = $1", data["parcel"])
    return web.json_response({})


async def start(app):
    app["pool"] = await asyncpg.create_pool(os.environ["DSN"])


def make_app():
    app = web.Application()
    app.on_startup.append(start)
    app.add_routes([web.post("/webhooks/parcels", parcel_scanned)])
    return app

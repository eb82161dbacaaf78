# ruff: noqa
# expect file: EO201
import psycopg
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse
from starlette.routing import Route


def settle(event):
    with psycopg.connect("dbname=shop") as conn:
        conn.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (event["order_id"],))


async def webhook(request):
    event = await request.json()
    return JSONResponse({"ok": True}, background=BackgroundTask(settle, event))


app = Starlette(routes=[Route("/webhook", webhook, methods=["POST"])])

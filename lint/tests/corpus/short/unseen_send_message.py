# ruff: noqa
# expect file: P11
import dramatiq

from .telegram import resolve_client


@dramatiq.actor(queue_name="telegram", max_retries=5)
async def notify(chat_id: int, text: str):
    client = resolve_client()
    if client is None:
        return None
    return await client.send_message(chat_id, text)

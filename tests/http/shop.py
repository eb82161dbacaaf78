"""What `test_servers` serves: every call is a line in a file, so that effects are counted from outside."""

from __future__ import annotations

import os
from typing import Any

import effectonce as eo
from effectonce.http.asgi import IdempotencyMiddleware


async def shop(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    with open("effects.txt", "a") as effects:
        print(scope["path"], len(body), file=effects)
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]})
    for part in (b"one ", b"two ", b"three"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await guarded(scope, receive, send)


guarded = IdempotencyMiddleware(shop, eo.connect(os.environ["EFFECTONCE_STORE"]), principal=eo.GLOBAL)

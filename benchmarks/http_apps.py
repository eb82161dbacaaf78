"""The applications that the ``http`` benchmark serves: ``python -m benchmarks.http_apps NAME PORT STORE``.

One handler for all: it reads its body and answers with a small JSON document. What differs is what stands around it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import uvicorn

import effectonce as eo
from effectonce.http.asgi import IdempotencyMiddleware

App = Callable[[Any, Any, Any], Any]

RECEIPT = b'{"receipt": "rcpt_4eC39HqLyjWDarjtT1zdp7dc", "status": "succeeded", "amount": 4200, "currency": "eur"}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(RECEIPT)).encode())]


async def handler(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
    await send({"type": "http.response.body", "body": RECEIPT})


def bare(url: str) -> App:
    return handler


def ours(url: str) -> App:
    return IdempotencyMiddleware(handler, eo.connect(url), principal=lambda scope: "alice")


def idemkit(url: str) -> App:
    from idemkit import HttpConfig, InMemoryBackend
    from idemkit import IdempotencyMiddleware as Middleware
    from idemkit.backends.redis import RedisBackend
    from redis.asyncio import Redis

    backend: Any = InMemoryBackend() if url.startswith("memory") else RedisBackend(Redis.from_url(url))
    config = HttpConfig(scope=lambda request: "alice")
    middleware: App = Middleware(handler, backend=backend, config=config)
    return middleware


def asgi_idempotency_header(url: str) -> App:
    from idempotency_header_middleware import IdempotencyHeaderMiddleware  # type: ignore[import-not-found, unused-ignore]
    from idempotency_header_middleware.backends import MemoryBackend, RedisBackend  # type: ignore[import-not-found, unused-ignore]
    from redis.asyncio import Redis

    backend = MemoryBackend() if url.startswith("memory") else RedisBackend(redis=Redis.from_url(url))
    middleware: App = IdempotencyHeaderMiddleware(handler, backend=backend)
    return middleware


def cached(url: str) -> App:
    """The response by its key from the same store, and nothing else: no claim, no fingerprint, no owner."""
    from redis.asyncio import Redis

    get: Callable[[bytes], Any]
    if url.startswith("memory"):
        kept: dict[bytes, bytes] = {}

        async def get(name: bytes) -> bytes:
            return kept.setdefault(name, RECEIPT)

    else:
        client = Redis.from_url(url)

        async def get(name: bytes) -> bytes:
            found: Any = await client.get(b"cached:" + name)
            if found is None:
                await client.set(b"cached:" + name, RECEIPT)
            return found or RECEIPT

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        body = await get(next(value for name, value in scope["headers"] if name == b"idempotency-key"))
        await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
        await send({"type": "http.response.body", "body": body})

    return app


APPS = {each.__name__: each for each in (bare, ours, idemkit, asgi_idempotency_header, cached)}

if __name__ == "__main__":
    name, port, store = sys.argv[1:]
    uvicorn.run(APPS[name](store), port=int(port), log_level="warning", access_log=False, lifespan="off")

"""What `test_broken_off` serves: a stream that raises in its middle, behind a middleware that ends it all the same."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

import effectonce as eo
from effectonce.http.asgi import IdempotencyMiddleware

shop = FastAPI()


@shop.middleware("http")
async def pass_on(request: Request, call_next: Any) -> Any:
    return await call_next(request)


@shop.post("/charges")
async def charge() -> StreamingResponse:
    async def receipt() -> AsyncIterator[bytes]:
        yield b"one "
        with open("effects.txt", "a") as effects:
            print("charged", file=effects)
        raise ZeroDivisionError

    return StreamingResponse(receipt())


app = IdempotencyMiddleware(shop, eo.connect(os.environ["EFFECTONCE_STORE"]), principal=eo.GLOBAL)

"""What Starlette's `BaseHTTPMiddleware` (FastAPI's ``@app.middleware("http")``) hides from a guard outside of it.

Such a middleware runs the application inside of it in another task, and passes its response on as a stream. If that
application breaks its response off, because it raised or because its client left, the stream only ends: the middleware
sends the end of the body like that of a whole one, and raises the error afterwards. A background task that fails after
a whole response looks the same from outside. So each such middleware gets an `InnerApp`, which sees the difference.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from .response_recording import IncompleteResponse

#: The ASGI scope's entry in which an application finds the `KeyedRequest` that it runs in.
KEYED_REQUEST_SCOPE_KEY: Final = "effectonce.keyed_request"


class InnerApp:
    """The application inside of a `BaseHTTPMiddleware`. It tells the `KeyedRequest` if it broke off a response that it
    had started."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        keyed_request = scope.get(KEYED_REQUEST_SCOPE_KEY)
        if keyed_request is None:
            await self._app(scope, receive, send)
            return
        started = ended = False

        async def send_and_watch(message: Any) -> None:
            nonlocal started, ended
            started = started or message["type"] == "http.response.start"
            ended = ended or (message["type"] == "http.response.body" and not message.get("more_body", False))
            await send(message)

        try:
            await self._app(scope, receive, send_and_watch)
        except BaseException as error:
            if started and not ended:
                keyed_request.break_off(error)
            raise
        if started and not ended:
            keyed_request.break_off(IncompleteResponse("the application returned before its response was complete"))


def watch_base_http_middleware() -> None:
    """Give an `InnerApp` to every `BaseHTTPMiddleware` of this process that is called from now on.

    It replaces the class's ``__call__``, once, because an instance may stand anywhere inside the guard, in mounted
    applications too, and may be made at any time. Nothing happens where Starlette is not loaded.
    """
    module = sys.modules.get("starlette.middleware.base")
    middleware: Any = getattr(module, "BaseHTTPMiddleware", None)
    if middleware is None or hasattr(middleware.__call__, "gives_inner_app"):
        return
    call_original = middleware.__call__

    @functools.wraps(call_original)
    async def call(self: Any, scope: Any, receive: Any, send: Any) -> None:
        if not isinstance(self.app, InnerApp):
            self.app = InnerApp(self.app)
        await call_original(self, scope, receive, send)

    call.gives_inner_app = True  # type: ignore[attr-defined]
    middleware.__call__ = call

"""One call to an API that keeps idempotency keys: its key, its retries, and the error that its response stands for."""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal

import msgspec

from effectonce.core.guarded_call.run import Run, current_run
from effectonce.errors import ConfigurationError, NotExecuted, OutcomeUnknown, Retryable, show
from effectonce.guard.options import read_choice
from effectonce.http.problems import error_of_problem
from effectonce.http.protocol import UNSAFE_METHODS
from effectonce.values.durations import Duration, micros
from effectonce.values.retry_after import parse_retry_after

#: Statuses after which the same call, under the same key, may succeed.
RETRIED_STATUSES: Final = frozenset((408, 425, 429, 502, 503, 504))
FIRST_RETRY_DELAY_S: Final = 0.2
#: Errors of a logged call (`IntentLog`) after which it may be sent again.
RESENDABLE_ERRORS: Final = (OutcomeUnknown, NotExecuted)


_step: ContextVar[str] = ContextVar("effectonce_step", default="")


@contextmanager
def step(name: str) -> Iterator[None]:
    """Give the calls inside a key of their own, by the ``name`` of their effect.

    A handler needs it if it calls one address twice, for two effects. Otherwise the second call would have the key of
    the first, and pass for its retry: ``for item in items: with step(item.id): client.post("/mails", …)``.
    """
    token = _step.set(name)
    try:
        yield
    finally:
        _step.reset(token)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a client's calls.

    - ``methods``: which methods get a key.
    - ``retries``: how often a call is tried again: after a lost connection, a 408, 425, 429, 502, 503 or 504, and after
      a 409 with Retry-After. A body that can be read only once is never sent again.
    - ``max_wait``: how long all tries together may take. A call is not retried if its Retry-After ends later.
    - ``provider``, ``account``: part of the keys that are made in a handler. The default provider is the host.
    - ``errors="raise"``: a problem of this protocol is raised as `InProgress`, `InDoubt`, `PayloadMismatch`,
      `ResultNotStored` or `PermanentFailure`. With ``"return"`` it is a response like any other.
    """

    methods: tuple[str, ...] = UNSAFE_METHODS
    retries: int = 3
    max_wait: Duration = "30s"
    provider: str = ""
    account: str = ""
    errors: Literal["raise", "return"] = "raise"

    def __post_init__(self) -> None:
        micros(self.max_wait, "max_wait")
        read_choice("errors", self.errors, "return", "raise")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ConfigurationError(f"retries={self.retries!r} is not a number of tries")


class ClientPort(msgspec.Struct):
    """How a client library sends one call. The coroutines of a sync library never suspend; see `sync_port`."""

    send: Callable[[], Awaitable[Any]]
    read_body: Callable[[Any], Awaitable[bytes]]
    close: Callable[[Any], Awaitable[None]]
    sleep: Callable[[float], Awaitable[None]]
    ambiguous_errors: tuple[type[Exception], ...]  # the errors of `send` after which the call may have arrived


def sync_port(
    send: Callable[[], Any], read_body: Callable[[Any], bytes], ambiguous_errors: tuple[type[Exception], ...]
) -> ClientPort:
    """Make the port of a sync library, for `run_sync`."""

    def make_async(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            return function(*args)

        return call

    close = make_async(lambda response: response.close())
    return ClientPort(make_async(send), make_async(read_body), close, make_async(time.sleep), ambiguous_errors)


class KeyedCall:
    """One call with all its retries. Its key is chosen before the first try, and never changes."""

    def __init__(
        self, settings: Settings, method: str, host: str, target: str, key: str | None, body: bytes | None
    ) -> None:
        self._settings = settings
        self._repeatable = body is not None
        self._run: Run | None = None
        self._digest = hashlib.sha256(body or b"").digest()
        self._deadline = time.monotonic() + micros(settings.max_wait, "max_wait") / 1e6
        run = current_run.get()
        if key is not None:
            self.key = key
        elif run is None or not run.active or not run.key:
            self.key = str(uuid.uuid4())
        else:
            operation = f"{method} {target}"
            provider = settings.provider or host
            self.key = run.provider_key(provider, account=settings.account, operation=operation, step=_step.get())
            self._run = run
            self._require_retry(run, operation)

    def _require_retry(self, run: Run, operation: str) -> None:
        """Require that this is the first call of the handler under its key, or a retry of a failed one.

        The API takes two calls under one key for one effect. ``run.calls`` holds, by key, the digest of a body that may
        be sent again, which `allow_retry` sets; or b"" for a call that is under way, or has been answered.
        """
        if run.calls is None:
            run.calls = {}
        retriable_digest = run.calls.get(self.key)
        if retriable_digest is not None and not (self._repeatable and retriable_digest == self._digest):
            raise ConfigurationError(
                f"this handler calls {show(operation)} a second time, which the API would take for a retry of the "
                "first; if it is another effect, say so: `with effectonce.http.client.step(name):`"
            )
        run.calls[self.key] = b""

    def allow_retry(self) -> None:
        """Let the handler make the same call again: it did not get the response, or not all of it."""
        if self._run is not None and self._run.calls is not None:
            self._run.calls[self.key] = self._digest

    async def send(self, port: ClientPort) -> Any:
        """Send the call, retry it where that may help, and return its response.

        A response that is a problem of this protocol is raised as its error, unless the settings say ``"return"``.
        """
        tries = 0
        while True:
            tries += 1
            try:
                response = await port.send()
            except BaseException as error:
                retry_after = error.retry_after if isinstance(error, Retryable) else None
                delay = self._retry_delay(tries, retry_after) if isinstance(error, port.ambiguous_errors) else None
                if delay is None:
                    self.allow_retry()
                    raise
            else:
                status, retry_after = response.status_code, parse_retry_after(response.headers.get("retry-after", ""))
                may_succeed = status in RETRIED_STATUSES or (status == 409 and retry_after is not None)
                delay = self._retry_delay(tries, retry_after) if may_succeed else None
                if delay is None:
                    if may_succeed:
                        self.allow_retry()
                    if status in (409, 422) and self._settings.errors == "raise":
                        await self._raise_problem(port, response, retry_after)
                    return response
                await port.close(response)
            await port.sleep(delay)

    def _retry_delay(self, tries: int, retry_after: float | None) -> float | None:
        """Return the seconds until the next try; None if there is none."""
        if tries > self._settings.retries or not self._repeatable:
            return None
        delay = random.uniform(0.5, 1) * FIRST_RETRY_DELAY_S * 2 ** (tries - 1)
        if retry_after is not None:
            delay = max(delay, retry_after)
        return delay if time.monotonic() + delay < self._deadline else None

    async def _raise_problem(self, port: ClientPort, response: Any, retry_after: float | None) -> None:
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "application/problem+json":
            error = error_of_problem(await port.read_body(response), retry_after)
            if error is not None:
                await port.close(response)
                raise error

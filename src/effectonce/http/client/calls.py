"""One logical call to an API that keeps idempotency keys: its key, its tries, and the error that its answer means."""

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
FIRST_PAUSE_S: Final = 0.2
#: Errors of an intent that was sent, and may be sent again.
UNSETTLED: Final = (OutcomeUnknown, NotExecuted)


_step: ContextVar[str] = ContextVar("effectonce_step", default="")


@contextmanager
def step(name: str) -> Iterator[None]:
    """Name the effect of the calls inside, so that they are not taken for those outside.

    A handler that calls one address twice, for two effects, needs it; else the second call would pass for a retry of
    the first: ``for item in items: with step(item.id): client.post("/mails", …)``.
    """
    token = _step.set(name)
    try:
        yield
    finally:
        _step.reset(token)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a client's calls.

    - ``methods``: which get a key; GET and the other safe ones never do.
    - ``retries``: how often a call is tried again, after a lost connection, a 409 that says when, a 408, 425, 429, 502,
      503 or 504. A body that can be sent only once is never sent again.
    - ``max_wait``: how long all of that may take; a Retry-After beyond it is not waited for.
    - ``provider``, ``account``: what a key made in a handler is bound to, beside the address; the provider is the host,
      unless told otherwise.
    - ``errors="raise"``: a problem of this protocol is raised as `InProgress`, `InDoubt`, `PayloadMismatch`,
      `ResultNotStored` or `PermanentFailure`; with ``"return"`` it is a response like any other.
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
    unsure: tuple[type[Exception], ...]  # the errors of `send` that leave open whether the call arrived


def sync_port(
    send: Callable[[], Any], read_body: Callable[[Any], bytes], unsure: tuple[type[Exception], ...]
) -> ClientPort:
    """The port of a sync library, for `run_sync`."""

    def make_async(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            return function(*args)

        return call

    close = make_async(lambda response: response.close())
    return ClientPort(make_async(send), make_async(read_body), close, make_async(time.sleep), unsure)


class KeyedCall:
    """One logical call. Its key is settled before the first try, and never changes."""

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
            self._refuse_another(run, operation)

    def _refuse_another(self, run: Run, operation: str) -> None:
        """Under one key two effects would be one, so a second call must be a retry: the same, after a failure."""
        if run.calls is None:
            run.calls = {}
        repeatable = run.calls.get(self.key)
        if repeatable is not None and not (self._repeatable and repeatable == self._digest):
            raise ConfigurationError(
                f"this handler calls {show(operation)} a second time, which the API would take for a retry of the "
                "first; if it is another effect, say so: `with effectonce.http.client.step(name):`"
            )
        run.calls[self.key] = b""

    def allow_retry(self) -> None:
        """Let the handler make the same call again: it did not get the answer, or not all of it."""
        if self._run is not None and self._run.calls is not None:
            self._run.calls[self.key] = self._digest

    async def exchange(self, port: ClientPort) -> Any:
        """Send the call, again where that may help, and return its answer.

        An answer that is a problem of this protocol is raised as its error, unless the settings say ``"return"``.
        """
        tries = 0
        while True:
            tries += 1
            try:
                response = await port.send()
            except BaseException as error:
                retry_after = error.retry_after if isinstance(error, Retryable) else None
                pause = self._pause(tries, retry_after) if isinstance(error, port.unsure) else None
                if pause is None:
                    self.allow_retry()
                    raise
            else:
                status, retry_after = response.status_code, parse_retry_after(response.headers.get("retry-after", ""))
                may_succeed = status in RETRIED_STATUSES or (status == 409 and retry_after is not None)
                pause = self._pause(tries, retry_after) if may_succeed else None
                if pause is None:
                    if may_succeed:
                        self.allow_retry()
                    if status in (409, 422) and self._settings.errors == "raise":
                        await self._raise_problem(port, response, retry_after)
                    return response
                await port.close(response)
            await port.sleep(pause)

    def _pause(self, tries: int, retry_after: float | None) -> float | None:
        """Seconds until the next try; None where there is none."""
        if tries > self._settings.retries or not self._repeatable:
            return None
        pause = random.uniform(0.5, 1) * FIRST_PAUSE_S * 2 ** (tries - 1)
        if retry_after is not None:
            pause = max(pause, retry_after)
        return pause if time.monotonic() + pause < self._deadline else None

    async def _raise_problem(self, port: ClientPort, response: Any, retry_after: float | None) -> None:
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "application/problem+json":
            error = error_of_problem(await port.read_body(response), retry_after)
            if error is not None:
                await port.close(response)
                raise error

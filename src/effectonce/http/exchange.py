"""One keyed request, from its claim to the settlement of its response: what ASGI, WSGI and the frameworks share.

Built on the guard's own flow. Written once, as `async def` over a `StoreClient`: async adapters await it,
sync ones run it with `run_sync`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from effectonce.core.guarded_call.begin import begin, prepare
from effectonce.core.guarded_call.finish import abort, finish, leave
from effectonce.core.guarded_call.run import Run
from effectonce.core.store_runtime import StoreClient, StoreRuntime, log
from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    InvalidKey,
    MissingKey,
    MissingPrincipal,
    StoreUnavailable,
    show,
)
from effectonce.guard.once import GLOBAL
from effectonce.guard.options import check_scope
from effectonce.keys import Key, encode_key
from effectonce.store import Store

from . import protocol
from .protocol import DRAFT, Headers, Response
from .routes import RoutePlan

Principal = Key | None


def make_principal_getter(principal: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return the function that names the caller of a request, from the option ``principal=``."""
    if callable(principal):
        return principal
    if principal == GLOBAL:
        return lambda *_: GLOBAL
    raise ConfigurationError(
        "principal= takes a function that names the caller of a request (the user or tenant id that it was "
        "authenticated for, never the token or the address), or GLOBAL where all callers share their keys"
    )


class HttpGuard:
    """What one middleware or decorator knows: its store, the scope of its records, the page its problems link to."""

    def __init__(self, store: Store, service: str, docs: str) -> None:
        protocol.require_parser()
        check_scope(service)
        if any(c in docs for c in '<>" \r\n'):
            raise ConfigurationError(f"docs={show(docs)!r} is no address of a page")
        self.store = store
        self.service = service
        self.docs = docs

    @property
    def runtime(self) -> StoreRuntime:
        return self.store.runtime

    def prepare(self, plan: RoutePlan, method: str, path: str, key: str, principal: Principal, prints: bytes) -> Run:
        """Prepare the run of a request, unclaimed. Raises `MissingPrincipal` where its caller is not known."""
        stored = protocol.record_key(principal_key(principal), method, path, key)
        return prepare(self.runtime, plan.policy, stored, prints)

    def refusal(self, error: EffectOnceError, method: str, path: str) -> Response:
        return refusal(error, method, path, self.docs)


def read_key(plan: RoutePlan, values: Sequence[bytes]) -> str | None:
    """Read the key from the header's field lines. None: there is none, and none is required."""
    if values:
        return protocol.parse_key(values, plan.max_key)
    if plan.required:
        raise MissingKey("the request has no Idempotency-Key, and its route requires one")
    return None


def principal_key(principal: Principal) -> str:
    """Encode the caller as part of a key."""
    try:
        return encode_key(principal)
    except (MissingKey, InvalidKey) as error:
        if principal is not None and not isinstance(principal, str | int | tuple):
            raise ConfigurationError(
                f"principal= gave a {type(principal).__name__}, which does not name a caller"
            ) from error
        raise MissingPrincipal(f"principal= did not name the caller: {error}") from error


def refusal(error: EffectOnceError, method: str, path: str, docs: str) -> Response:
    """What is answered instead of a response, and said in the log where it is our side that failed."""
    response = protocol.problem(error, docs)
    if response.status >= 500:
        log.error("%s %s: %s: %s", show(method, 16), show(path), error.code, error)
    else:
        log.info("%s %s: %s", show(method, 16), show(path), error.code)
    return response


async def claim(run: Run, client: StoreClient) -> Response | None:
    """Claim ``run``. A response is the stored one, to be sent; with None, the handler is to run now.

    Raises what else a claim can come to, always as an `EffectOnceError`.
    """
    try:
        await begin(run, client)
    except EffectOnceError:
        raise
    except Exception as error:  # of a store that breaks its contract; the handler has not run
        log.exception("scope %s: the claim failed", show(run.scope))
        raise StoreUnavailable(f"the store failed: {type(error).__name__}") from error
    if run.replayed:
        return protocol.replay(run.value, run.policy.retention)
    return None


class Recording:
    """The response of one claimed request: kept up to the cap while it is sent, and settled before it ends."""

    __slots__ = (
        "_chunks",
        "_expected",
        "_size",
        "client",
        "concluded",
        "docs",
        "headers",
        "over",
        "plan",
        "run",
        "status",
    )

    def __init__(self, plan: RoutePlan, run: Run, client: StoreClient, docs: str = DRAFT) -> None:
        self.plan = plan
        self.run = run
        self.client = client
        self.docs = docs
        self.status = 0
        self.headers: Headers = []
        self.concluded = False
        self.over = False  # the cap is passed: it will not be stored
        self._chunks: list[bytes] = []
        self._size = 0
        self._expected: int | None = None

    @property
    def published(self) -> Headers:
        """What is added to the first response's own headers."""
        return protocol.published(self.plan.policy.retention) if self.run.protected else []

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        headers = list(headers)
        self.status = status
        self.headers = protocol.kept(headers, self.plan.kept)
        length = next((value for name, value in headers if name.lower() == "content-length"), "")
        self._expected = int(length) if length.isdecimal() and length.isascii() else None
        if not protocol.has_body(status):  # its headers are its end
            self._expected = 0

    def expect(self, size: int) -> None:
        """So long is the body, where no header says it."""
        if self._expected is None:
            self._expected = size

    def add(self, chunk: bytes) -> bool:
        """Keep ``chunk``. True where it may be sent at once; False where a client could take it for the last one, so
        that it has to wait for the record."""
        self._size += len(chunk)
        if self._size > self.plan.max_response:
            self.over = True
            self._chunks.clear()
        elif chunk:
            self._chunks.append(chunk)
        return self._expected is None or self._size < self._expected

    async def conclude(self) -> EffectOnceError | None:
        """The handler has given its whole response: settle what that means.

        An error is why it could not be recorded as done: the response must not be sent then. The claim stands until
        its lease ends, and then it is as the route's ``on_lapse`` says.
        """
        if self.status == 0:
            await self.fail(Incomplete("the response has no status"))
            return None
        self.concluded = True
        plan, run, status = self.plan, self.run, self.status
        if status in plan.transient:
            await leave(run, self.client, "free", f"status {status}")
            return None
        if status >= 500 and plan.on_error != "replay":
            await leave(run, self.client, "in_doubt" if plan.on_error == "doubt" else "free", f"status {status}")
            return None
        return await self._done(Response(status, self.headers, None if self.over else b"".join(self._chunks)))

    async def fail(self, error: BaseException) -> None:
        """The handler ended without a whole response, with ``error``. Never raises an `Exception`."""
        self.concluded = True
        if self.plan.on_error != "replay" or isinstance(error, GeneratorExit):
            await abort(self.run, self.client, error)
            return
        failed = await self._done(protocol.lost_attempt(self.docs))
        if failed is not None:
            log.warning("scope %s: a failed attempt was not recorded: %s", show(self.run.scope), failed)

    async def _done(self, response: Response) -> EffectOnceError | None:
        try:
            await finish(self.run, self.client, response)
        except EffectOnceError as error:
            return error
        except Exception as error:
            log.exception("scope %s: the completion failed", show(self.run.scope))
            return StoreUnavailable(f"the store failed: {type(error).__name__}")
        return None


class Incomplete(Exception):
    """The handler came back without having given a whole response."""

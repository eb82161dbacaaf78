"""One keyed request, from its claim to the settlement of its response: what ASGI, WSGI and the frameworks share.

Built on the guarded call of `core`, and written once, as `async def` over a `StoreClient`: async adapters await it,
sync ones run it with `run_sync`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from effectonce.core.guarded_call.begin import begin, prepare
from effectonce.core.guarded_call.finish import abort, finish, leave
from effectonce.core.guarded_call.run import Run
from effectonce.core.store_clients import StoreClient
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
from effectonce.guard.options import check_scope, read_choice
from effectonce.keys import Key, encode_key
from effectonce.store import Store

from . import protocol
from .problems import lost_attempt, problem
from .protocol import Headers, Response
from .routes import Route, RoutePlan, Routes, RouteTable

log = logging.getLogger("effectonce")

Principal = Key | None
A = TypeVar("A")
GetPrincipal = TypeVar("GetPrincipal", bound=Callable[..., Any])

KEY_VARIABLE: Final = "HTTP_IDEMPOTENCY_KEY"  # where a WSGI environ, or Django's ``META``, has the header


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


def identify_request(principal: Principal, method: str, path: str, key: str) -> str:
    """The key of a request's record; see `record_key`. Raises `MissingPrincipal` where the caller is not known."""
    try:
        return protocol.record_key(encode_key(principal), method, path, key)
    except (MissingKey, InvalidKey) as error:
        if principal is not None and not isinstance(principal, str | int | tuple):
            kind = type(principal).__name__
            raise ConfigurationError(f"principal= gave a {kind}, which does not name a caller") from error
        raise MissingPrincipal(f"principal= did not name the caller: {error}") from error


def key_lines(environ: Mapping[str, Any]) -> list[bytes]:
    """The field lines of Idempotency-Key in a WSGI environ, or in Django's ``META``; servers join repeated ones."""
    line = environ.get(KEY_VARIABLE)
    return [] if line is None else [line.encode("latin-1", "replace")]


def refusal(error: EffectOnceError, method: str, path: str, docs: str) -> Response:
    """Return the problem that is answered instead of running the handler, and log it: as an error where the server is
    at fault."""
    response = problem(error, docs)
    if response.status >= 500:
        log.error("%s %s: %s: %s", show(method, 16), show(path), error.code, error)
    else:
        log.info("%s %s: %s", show(method, 16), show(path), error.code)
    return response


class HttpGuard:
    """What the requests of one middleware or decorator share: the store, the scope of their records (``service``), the
    page that problems link to (``docs``), whether an error is answered or raised (``errors``), and how their callers
    are named (``principal``)."""

    def __init__(
        self, store: Store, service: str, docs: str, *, principal: Callable[..., Any] | str, errors: str = "respond"
    ) -> None:
        protocol.load_parser()
        check_scope(service)
        if any(c in docs for c in '<>" \r\n'):
            raise ConfigurationError(f"docs={show(docs)!r} is not the address of a page")
        self.store = store
        self.service = service
        self.docs = docs
        self.get_principal = make_principal_getter(principal)
        self._raises = read_choice("errors", errors, "raise", "respond")

    async def claim(self, plan: RoutePlan, client: StoreClient, key: str, fingerprint: bytes) -> Recording | Response:
        """Claim a request by the key of its record. A `Recording`: its handler runs now, under `current()`. A response:
        the stored one, which is sent instead.

        Raises why a claim was refused, always as an `EffectOnceError`.
        """
        run = prepare(self.store.runtime, plan.policy, key, fingerprint)
        try:
            await begin(run, client)
        except EffectOnceError:
            raise
        except Exception as error:  # of a store that breaks its contract; the handler has not run
            log.exception("scope %s: the claim failed", show(run.scope))
            raise StoreUnavailable(f"the store failed: {type(error).__name__}") from error
        if run.replayed:
            return protocol.replay(run.value, plan.policy.retention)
        run.enter()
        return Recording(plan, run, client, self.docs)

    def refusal(self, error: EffectOnceError, method: str, path: str) -> Response:
        if self._raises:
            raise error
        return refusal(error, method, path, self.docs)


class HttpMiddleware(Generic[A, GetPrincipal]):
    """The settings of the ASGI and the WSGI middleware, ready to be used."""

    def __init__(
        self,
        app: A,
        store: Store,
        *,
        principal: GetPrincipal | str,
        default: Route | None = Route(),  # noqa: B008 - frozen
        routes: Routes | None = None,
        service: str = "http",
        docs: str = protocol.DRAFT_URL,
    ) -> None:
        self._app = app
        self._guard = HttpGuard(store, service, docs, principal=principal)
        self._table = RouteTable(default, routes, service)


class Recording:
    """The response of one claimed request: kept up to its cap while it is sent, and settled before it ends."""

    def __init__(self, plan: RoutePlan, run: Run, client: StoreClient, docs: str) -> None:
        self.run = run
        self.client = client
        self.concluded = False
        self.too_long = False  # the cap is passed: the response will not be stored
        self._route = plan.route
        self._plan = plan
        self._docs = docs
        self._status = 0
        self._headers: Headers = []
        self._chunks: list[bytes] = []
        self._size = 0
        self._expected_size: int | None = None

    @property
    def added_headers(self) -> Headers:
        """The headers that are added to the first response's own."""
        return protocol.retention_headers(self._plan.policy.retention) if self.run.protected else []

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Keep the status and the headers of the response."""
        headers = list(headers)
        self._status = status
        self._headers = protocol.headers_to_store(headers, self._plan.stored_headers)
        length = next((value for name, value in headers if name.lower() == "content-length"), "")
        if not protocol.has_body(status):  # such a response ends with its headers
            self._expected_size = 0
        elif length.isdecimal() and length.isascii():
            self._expected_size = int(length)

    def add(self, chunk: bytes) -> bool:
        """Keep ``chunk``. Returns whether it may be sent at once: a chunk that a client could take for the last one
        waits for the record."""
        self._size += len(chunk)
        if self._size > self._route.max_response:
            self.too_long = True
            self._chunks.clear()
        elif chunk:
            self._chunks.append(chunk)
        return self._expected_size is None or self._size < self._expected_size

    async def conclude(self) -> EffectOnceError | None:
        """Settle the request by its whole response.

        Returns an error where it could not be recorded as done: the response must not be sent then. The claim stands
        until its lease ends, and then the route's ``on_lapse`` decides.
        """
        if self._status == 0:
            await self.fail(Incomplete("the response has no status"))
            return None
        self.concluded = True
        on_error = self._route.on_error
        if self._status in self._route.transient:
            await leave(self.run, self.client, "free", f"status {self._status}")
        elif self._status >= 500 and on_error != "replay":
            await leave(self.run, self.client, "in_doubt" if on_error == "doubt" else "free", f"status {self._status}")
        else:
            body = None if self.too_long else b"".join(self._chunks)
            return await self._record(Response(self._status, self._headers, body))
        return None

    async def conclude_with(self, body: bytes) -> EffectOnceError | None:
        """Settle the request by its response, which has all of ``body``, and end its run. Returns as `conclude`."""
        self.add(body)
        try:
            return await self.conclude()
        finally:
            self.run.end()

    async def fail(self, error: BaseException) -> None:
        """Settle a request whose handler ended without a whole response. Never raises an `Exception`."""
        self.concluded = True
        if self._route.on_error != "replay" or isinstance(error, GeneratorExit):
            await abort(self.run, self.client, error)
            return
        unrecorded = await self._record(lost_attempt(self._docs))
        if unrecorded is not None:
            log.warning("scope %s: a failed attempt was not recorded: %s", show(self.run.scope), unrecorded)

    async def give_up(self, error: BaseException) -> None:
        """Settle a request whose handler raised ``error``, unless it is settled already, and end its run."""
        try:
            if not self.concluded:
                await self.fail(error)
        finally:
            self.run.end()

    async def _record(self, response: Response) -> EffectOnceError | None:
        try:
            await finish(self.run, self.client, response)
        except EffectOnceError as error:
            return error
        except Exception as error:
            log.exception("scope %s: the completion failed", show(self.run.scope))
            return StoreUnavailable(f"the store failed: {type(error).__name__}")
        return None


class Incomplete(Exception):
    """The handler ended without having given a whole response."""

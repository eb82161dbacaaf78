"""The guard of HTTP requests, which ASGI, WSGI and the frameworks share: who is calling, and the claim of a request.

`HttpGuard.claim` returns either the stored response, or a `ResponseRecording` for the request that runs now. Both are
written once, as `async def` over a `StoreClient`: async adapters await them, sync ones run them with `run_sync`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from effectonce.core.guarded_call.begin import begin, prepare_run
from effectonce.core.interrupts import raise_interrupt
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
from effectonce.store import Store, require_store

from . import protocol
from .key_limit import KeyLimit
from .profiles import DRAFT, Profile
from .protocol import Response
from .response_recording import ResponseRecording
from .routes import Route, RoutePlan, Routes, RouteTable

log = logging.getLogger("effectonce")

Principal = Key | None
DEFAULT_ROUTE: Final = Route()
"""Stands for the profile's own settings."""

A = TypeVar("A")
GetPrincipalT = TypeVar("GetPrincipalT", bound=Callable[..., Any])

#: The name of the Idempotency-Key header in a WSGI environ, and in Django's ``META``.
KEY_VARIABLE: Final = "HTTP_IDEMPOTENCY_KEY"


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
    """Return the key of a request's record; see `record_key`. Raises `MissingPrincipal` if the caller is not known."""
    try:
        return protocol.record_key(encode_key(principal), method, path, key)
    except (MissingKey, InvalidKey) as error:
        if principal is not None and not isinstance(principal, str | int | tuple):
            kind = type(principal).__name__
            raise ConfigurationError(f"principal= gave a {kind}, which does not name a caller") from error
        raise MissingPrincipal(f"principal= did not name the caller: {error}") from error


def key_lines(environ: Mapping[str, Any]) -> list[bytes]:
    """Return the Idempotency-Key lines of a WSGI environ, or of Django's ``META``: at most one, since servers join
    repeated headers."""
    line = environ.get(KEY_VARIABLE)
    return [] if line is None else [line.encode("latin-1", "replace")]


def refusal(error: EffectOnceError, method: str, path: str, docs: str, profile: Profile = DRAFT) -> Response:
    """Log why a request may not run, and return the problem to answer it with. A 5xx is logged as an error, the rest
    as information."""
    response = profile.answer(error, docs)
    if response.status >= 500:
        log.error("%s %s: %s: %s", show(method, 16), show(path), error.code, error)
    else:
        log.info("%s %s: %s", show(method, 16), show(path), error.code)
    return response


class HttpGuard:
    """Claims the requests of one middleware or decorator.

    ``service`` is the scope of their records, ``docs`` the page that problems link to, ``principal`` the function that
    names the caller of a request. ``errors`` says whether a refused request is answered with a problem
    (``"respond"``), or its error is raised (``"raise"``).
    """

    def __init__(
        self,
        store: Store,
        service: str,
        docs: str,
        *,
        principal: Callable[..., Any] | str,
        errors: str = "respond",
        profile: Profile = DRAFT,
    ) -> None:
        require_store(store, "an HTTP guard on {}")
        protocol.load_parser()
        check_scope(service)
        if any(c in docs for c in '<>" \r\n'):
            raise ConfigurationError(f"docs={show(docs)!r} is not the address of a page")
        self.store = store
        self.service = service
        self.docs = docs
        self.get_principal = make_principal_getter(principal)
        self.profile = profile
        self._raises = read_choice("errors", errors, "raise", "respond")
        self._key_limit = KeyLimit(profile.keys_per_s, profile.burst) if profile.keys_per_s else None

    async def claim_limited(
        self, plan: RoutePlan, client: StoreClient, principal: Principal, key: str, fingerprint: bytes
    ) -> ResponseRecording | Response:
        """`claim`, for a caller that may use so many new keys as the profile says."""
        limit = self._key_limit
        if limit is None:
            return await self.claim(plan, client, key, fingerprint)
        caller = encode_key(principal)
        wait_s = limit.take(caller)
        if wait_s:
            return self.profile.rate_limited(wait_s)
        claimed: ResponseRecording | Response | None = None
        try:
            claimed = await self.claim(plan, client, key, fingerprint)
            return claimed
        finally:
            if not isinstance(claimed, ResponseRecording):  # it is not new
                limit.give_back(caller)

    def echo(self, key_lines: Sequence[bytes]) -> protocol.Headers:
        """Return the headers that an answer repeats from its request, whose Idempotency-Key has these lines."""
        if not self.profile.echoes_key or len(key_lines) != 1:
            return []
        return [(protocol.KEY_HEADER, key_lines[0].decode("latin-1"))]

    def identify(
        self,
        plan: RoutePlan,
        key: str | None,
        fingerprint: bytes,
        read_body: Callable[[], bytes],
        method: str,
        path: str,
        query: str,
        principal: Principal,
    ) -> tuple[str, bytes] | None:
        """Return the key of a request's record, and its fingerprint; None: it needs no key, and has none.

        ``key`` and ``fingerprint`` are those of the draft: from the header, and of the body's bytes.
        """
        profile = self.profile
        if profile.reads_body:
            key, fingerprint = profile.read_body(read_body(), key, (method, path, query))
            if key is None and not plan.route.required:
                return None
        place = (method, path) if profile.keys_by_path else ("*", "*")
        return identify_request(principal, *place, profile.require_key(key)), fingerprint

    async def claim(
        self, plan: RoutePlan, client: StoreClient, key: str, fingerprint: bytes
    ) -> ResponseRecording | Response:
        """Claim a request by the key of its record.

        Returns the stored response, which is sent instead of running the handler; or a `ResponseRecording`: the handler
        runs now, under `current()`, and the caller must settle the recording however the handler ends.

        Raises an `EffectOnceError` if the claim is refused, and nothing else.
        """
        run = prepare_run(self.store.runtime, plan.policy, key, fingerprint)
        try:
            await begin(run, client)
        except EffectOnceError:
            raise
        except Exception as error:  # the store broke its contract; the handler has not run
            raise_interrupt(error)
            log.exception("scope %s: the claim failed", show(run.scope))
            raise StoreUnavailable(f"the store failed: {type(error).__name__}") from error
        if run.replayed:
            return self.profile.replay(run.value, plan.policy.retention_us)
        run.enter()
        return ResponseRecording(plan, run, client, self.docs, self.profile)

    def refusal(self, error: EffectOnceError, method: str, path: str) -> Response:
        """Return the problem for a refused request; raise ``error`` instead where ``errors`` says so."""
        if self._raises:
            raise error
        return refusal(error, method, path, self.docs, self.profile)


class HttpMiddleware(Generic[A, GetPrincipalT]):
    """The base of the ASGI and the WSGI middleware: it checks their settings, and makes the guard and the routes."""

    def __init__(
        self,
        app: A,
        store: Store,
        *,
        principal: GetPrincipalT | str,
        default: Route | None = DEFAULT_ROUTE,
        routes: Routes | None = None,
        service: str = "http",
        docs: str = protocol.DRAFT_URL,
        profile: Profile = DRAFT,
    ) -> None:
        self._app = app
        self._guard = HttpGuard(store, service, docs, principal=principal, profile=profile)
        self._profile = profile
        self._table = RouteTable(profile.route() if default is DEFAULT_ROUTE else default, routes, service)

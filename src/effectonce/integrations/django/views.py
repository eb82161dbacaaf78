"""One view guarded: a decorator for function views, and a mixin for REST framework's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ClassVar, Literal, TypeVar

from asgiref.sync import markcoroutinefunction
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from effectonce.core.run_sync import run_sync
from effectonce.errors import ConfigurationError, PayloadTooLarge
from effectonce.http import protocol
from effectonce.http.guard import KEY_VARIABLE
from effectonce.http.response_recording import ResponseRecording
from effectonce.http.routes import make_view_plan
from effectonce.store import Store

from .request_guard import DjangoGuard, read_body, render_response, respond_once, respond_once_async

V = TypeVar("V", bound=Callable[..., Any])


class AtomicInside(set[str]):
    """Moves the transactions of ATOMIC_REQUESTS inside the guard: a view must be committed before it is recorded as
    done.

    Django asks a view's ``_non_atomic_requests`` whether it contains a database, and opens no transaction if it does.
    This set says yes to all, and `transactions` opens them instead. Its real elements are the databases for which the
    view has ``@non_atomic_requests``.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    @contextmanager
    def transactions(self) -> Iterator[None]:
        """Open a transaction on every database with ATOMIC_REQUESTS, except those in this set."""
        non_atomic = frozenset(self)
        with ExitStack() as stack:
            for alias, database in connections.settings.items():
                if database["ATOMIC_REQUESTS"] and alias not in non_atomic:
                    stack.enter_context(transaction.atomic(using=alias))
            yield


class Idempotency:
    """The guard of one view: a decorator for function views, sync or async, and the settings of an `IdempotentView`.

    ``principal`` is a function of the request that names its caller, or `GLOBAL`. ``settings`` are those of
    `http.Route`. A request that may not run is answered with a problem+json; with ``errors="raise"`` it raises
    `InProgress`, `PayloadMismatch` and so on.
    """

    def __init__(
        self,
        store: Store,
        *,
        principal: Callable[..., Any] | str,
        errors: Literal["respond", "raise"] = "respond",
        service: str = "http",
        docs: str = protocol.DRAFT_URL,
        **settings: Any,
    ) -> None:
        self.plan = make_view_plan(service, settings)
        self.guard = DjangoGuard(store, service, docs, principal=principal, errors=errors)

    @property
    def scope(self) -> str:
        """The scope of its records: ``service``."""
        return self.plan.policy.scope

    def guards(self, request: HttpRequest) -> bool:
        """Tell whether this request is to be claimed."""
        return self.plan.guards(request.method, KEY_VARIABLE in request.META)

    def __call__(self, view: V) -> V:
        is_async = inspect.iscoroutinefunction(view)
        run = respond_once_async if is_async else respond_once
        atomic = AtomicInside(getattr(view, "_non_atomic_requests", ()))

        def guarded_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            def respond(request: HttpRequest) -> Any:
                if is_async:
                    return view(request, *args, **kwargs)
                with atomic.transactions():
                    return view(request, *args, **kwargs)

            return run(self.guard, self.plan, request, respond) if self.guards(request) else respond(request)

        wrapped: Any = functools.update_wrapper(guarded_view, view)
        wrapped.idempotency = self  # for the system checks
        if is_async:
            return markcoroutinefunction(wrapped)  # type: ignore[no-any-return]
        wrapped._non_atomic_requests = atomic
        return wrapped  # type: ignore[no-any-return]


class IdempotentView:
    """A mixin for REST framework's views, before `APIView` among the bases: it claims once the request is
    authenticated, permitted and not throttled, and replays the rendered response."""

    idempotency: ClassVar[Idempotency]
    _recording: ResponseRecording | None = None
    _atomic = AtomicInside()

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        atomic = AtomicInside()
        view = super().as_view(*args, **{**initkwargs, "_atomic": atomic})  # type: ignore[misc]
        atomic.update(getattr(view, "_non_atomic_requests", ()))
        view._non_atomic_requests = atomic
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if self.idempotency.guards(request):
            with suppress(PayloadTooLarge, ConfigurationError):  # raised again when the request is claimed
                read_body(request, self.idempotency.plan.route.max_body)  # before a parser takes it from the stream
        try:
            with self._atomic.transactions():
                response: HttpResponseBase = super().dispatch(request, *args, **kwargs)  # type: ignore[misc]
            if self._recording is not None:
                settlement = self.idempotency.guard.settle(self._recording, request, render_response(response))
                response = run_sync(settlement)
        except BaseException as error:
            if self._recording is not None:
                run_sync(self._recording.fail_and_end(error))
            raise
        return response

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        if self.idempotency.guards(request):
            claim = self.idempotency.guard.claim_request(self.idempotency.plan, request, is_async=False)
            claimed = run_sync(claim)
            if isinstance(claimed, HttpResponse):
                raise _Answered(claimed)
            self._recording = claimed

    def handle_exception(self, exc: Exception) -> Any:
        if isinstance(exc, _Answered):
            return exc.args[0]
        return super().handle_exception(exc)  # type: ignore[misc]


class _Answered(Exception):
    """Carries a response, its argument, out of `initial`, which cannot return one."""

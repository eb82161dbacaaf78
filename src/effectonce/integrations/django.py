"""Django: a middleware setting, a decorator for one view, a mixin for Django REST framework's views.

    MIDDLEWARE = [
        ...,
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "effectonce.integrations.django.IdempotencyMiddleware",  # after whatever authenticates and limits
    ]
    EFFECTONCE = {"STORE": "postgresql://…", "PRINCIPAL": "effectonce.integrations.django.user_id"}

Or for one view, sync or async::

    idempotent = Idempotency(store, principal=user_id, required=True)

    @idempotent
    def charge(request): ...

    class Charges(IdempotentView, APIView):  # REST framework: after its authentication, permissions and throttles
        idempotency = Idempotency(store, principal=lambda request: request.user.pk)
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Literal, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings  # type: ignore[import-untyped, unused-ignore]
from django.core.exceptions import (  # type: ignore[import-untyped, unused-ignore]
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.core.handlers.exception import response_for_exception  # type: ignore[import-untyped, unused-ignore]
from django.db import connections, transaction  # type: ignore[import-untyped, unused-ignore]
from django.http import Http404, HttpRequest, HttpResponse  # type: ignore[import-untyped, unused-ignore]
from django.http.request import RawPostDataException, UnreadablePostError  # type: ignore[import-untyped, unused-ignore]
from django.http.response import HttpResponseBase, StreamingHttpResponse  # type: ignore[import-untyped, unused-ignore]
from django.utils.module_loading import import_string  # type: ignore[import-untyped, unused-ignore]

from effectonce.core.guarded_call.run import running
from effectonce.core.run_sync import run_sync
from effectonce.core.store_runtime import StoreClient
from effectonce.errors import ConfigurationError, EffectOnceError, PayloadTooLarge
from effectonce.guard.options import choice
from effectonce.http import protocol
from effectonce.http.exchange import Guard, Principal, Recording, claim, make_principal_getter, read_key
from effectonce.http.routes import Plan, Route, Table, plan
from effectonce.http.streams import AsyncWatched, Watched
from effectonce.store import Store, connect
from effectonce.values.fingerprint import canonical

METHODS = ("POST", "PATCH", "PUT", "DELETE")
#: What Django makes a response of, by itself, when a view raises it.
ANSWERED = (Http404, PermissionDenied, BadRequest, SuspiciousOperation)

V = TypeVar("V", bound=Callable[..., Any])


def user_id(request: HttpRequest) -> str | None:
    """Whose request it is: the id of the user that Django has authenticated, or None."""
    user = getattr(request, "user", None)
    return str(user.pk) if user is not None and user.is_authenticated else None


class Exchanges:
    """Claims requests and settles their responses, for what is below."""

    def __init__(
        self, store: Store, principal: Callable[..., Any] | str, raises: bool, service: str, docs: str
    ) -> None:
        self.guard = Guard(store, service, docs)
        self._get_principal = make_principal_getter(principal)
        self._raises = raises

    def refusal(self, request: HttpRequest, error: EffectOnceError) -> HttpResponse:
        if self._raises:
            raise error
        return http_response(self.guard.refusal(error, str(request.method), request.path))

    def claim(self, guarded: Plan, request: HttpRequest) -> Recording | HttpResponse:
        """The request, claimed, or what is answered instead."""
        try:
            key = self._key(guarded, request)
            return run_sync(
                self._claim(guarded, request, key, self._get_principal(request), self.guard.runtime.sync_client())
            )
        except EffectOnceError as error:
            return self.refusal(request, error)

    async def aclaim(self, guarded: Plan, request: HttpRequest) -> Recording | HttpResponse:
        """As `claim`, in a loop. A sync ``principal=`` runs in a thread, since it may ask the database."""
        try:
            key = self._key(guarded, request)
            whose = (
                self._get_principal if iscoroutinefunction(self._get_principal) else sync_to_async(self._get_principal)
            )
            principal = await whose(request)
            return await self._claim(guarded, request, key, principal, self.guard.runtime.async_client())
        except EffectOnceError as error:
            return self.refusal(request, error)

    def _key(self, guarded: Plan, request: HttpRequest) -> str:
        sent = request.META.get("HTTP_IDEMPOTENCY_KEY")
        return read_key(guarded, [] if sent is None else [sent.encode("latin-1", "replace")]) or ""

    async def _claim(
        self, guarded: Plan, request: HttpRequest, key: str, principal: Principal, client: StoreClient
    ) -> Recording | HttpResponse:
        method, path, query = str(request.method), request.path, request.META.get("QUERY_STRING", "")
        raw_path = path.encode("utf-8", "surrogatepass")
        state = protocol.fingerprint_state(method, raw_path, query.encode("latin-1", "replace"))
        try:
            state.update(body_of(request, guarded.max_body))
        except UnreadablePostError:  # the client left in the middle of it
            return HttpResponse(status=400)
        run = self.guard.prepare(guarded, method, path, key, principal, protocol.fingerprint(state))
        stored = await claim(run, client)
        return http_response(stored) if stored is not None else Recording(guarded, run, client, self.guard.docs)

    async def settle(self, recording: Recording, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """``response``, settled, or to be settled when its stream ends; or another, where it must not be sent."""
        recording.start(response.status_code, response.headers.items())
        for name, value in recording.published:
            response.headers[name] = value
        if isinstance(response, StreamingHttpResponse):
            _watch(recording, response)
            return response
        recording.add(response.content)
        try:
            error = await recording.conclude()
        finally:
            recording.run.end()
        return response if error is None else self.refusal(request, error)

    async def fail(self, recording: Recording, error: BaseException) -> None:
        """The view raised ``error``."""
        try:
            if not recording.concluded:
                await recording.fail(error)
        finally:
            recording.run.end()


class IdempotencyMiddleware:
    """Runs each keyed request once, and replays its response to every retry; for a sync or an async stack.

    The setting ``EFFECTONCE`` is a dict: ``STORE`` (a URL, a `Store`, or the dotted path of one), ``PRINCIPAL`` (a
    function of the request that names its caller, or its dotted path; ``"*"`` is `GLOBAL`), and, if need be,
    ``DEFAULT`` (a `http.Route`, or None), ``ROUTES``, ``SERVICE`` and ``DOCS``, as `http.asgi.IdempotencyMiddleware`
    takes them.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        options = _options()
        service = options["SERVICE"]
        self._exchanges = Exchanges(options["STORE"], options["PRINCIPAL"], False, service, options["DOCS"])
        self._table = Table(options["DEFAULT"], options["ROUTES"], service)
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        guarded = self._table.find(str(request.method), request.path)
        if guarded is None or not ("HTTP_IDEMPOTENCY_KEY" in request.META or guarded.required):
            return self._get_response(request)
        return (_arun if self._is_async else _run)(self._exchanges, guarded, request, self._get_response)


class Inside(set[str]):
    """The transactions of ATOMIC_REQUESTS, opened inside of a guard and not around it: what is recorded as done must be
    committed before. Django finds every database in this set, so it opens none; it really holds those whose transaction
    the view does not want (``@non_atomic_requests``)."""

    def __contains__(self, alias: object) -> bool:
        return True

    @contextmanager
    def transactions(self) -> Iterator[None]:
        unwanted = frozenset(self)
        with ExitStack() as stack:
            for alias, told in connections.settings.items():
                if told["ATOMIC_REQUESTS"] and alias not in unwanted:
                    stack.enter_context(transaction.atomic(using=alias))
            yield


class Idempotency:
    """The same for one view: a decorator for function views, sync or async, and what an `IdempotentView` needs.

    ``principal`` is a function of the request that names its caller, or `GLOBAL`. ``settings`` are those of
    `http.Route`. A request that may not run is answered as problem+json; with ``errors="raise"`` it raises
    `InProgress`, `PayloadMismatch` and so on.
    """

    def __init__(
        self,
        store: Store,
        *,
        principal: Callable[..., Any] | str,
        errors: Literal["respond", "raise"] = "respond",
        service: str = "http",
        docs: str = protocol.DRAFT,
        **settings: Any,
    ) -> None:
        settings.setdefault("methods", METHODS)
        self.plan = plan(Route(**settings), service)
        self.exchanges = Exchanges(store, principal, choice("errors", errors, "raise", "respond"), service, docs)

    def guards(self, request: HttpRequest) -> bool:
        """Whether this request is to be claimed."""
        keyed = "HTTP_IDEMPOTENCY_KEY" in request.META
        return request.method in self.plan.methods and (keyed or self.plan.required)

    def __call__(self, view: V) -> V:
        is_async = inspect.iscoroutinefunction(view)
        run = _arun if is_async else _run
        inside = Inside(getattr(view, "_non_atomic_requests", ()))

        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            def respond(request: HttpRequest) -> Any:
                if is_async:
                    return view(request, *args, **kwargs)
                with inside.transactions():
                    return view(request, *args, **kwargs)

            return run(self.exchanges, self.plan, request, respond) if self.guards(request) else respond(request)

        wrapped: Any = functools.update_wrapper(guarded, view)
        if is_async:
            return markcoroutinefunction(wrapped)  # type: ignore[no-any-return]
        wrapped._non_atomic_requests = inside
        return wrapped  # type: ignore[no-any-return]


class IdempotentView:
    """A mixin for REST framework's views, before `APIView` among the bases: it claims once the request is
    authenticated, permitted and not throttled, and replays the rendered response."""

    idempotency: ClassVar[Idempotency]
    _recording: Recording | None = None
    _inside = Inside()

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        inside = Inside()
        view = super().as_view(*args, **{**initkwargs, "_inside": inside})  # type: ignore[misc]
        inside.update(getattr(view, "_non_atomic_requests", ()))
        view._non_atomic_requests = inside
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if self.idempotency.guards(request) and _length(request) <= self.idempotency.plan.max_body:
            _ = request.body  # before a parser takes it from the stream
        exchanges = self.idempotency.exchanges
        try:
            with self._inside.transactions():
                response: HttpResponseBase = super().dispatch(request, *args, **kwargs)  # type: ignore[misc]
            if self._recording is not None:
                response = run_sync(exchanges.settle(self._recording, request, rendered(response)))
        except BaseException as error:
            if self._recording is not None:
                run_sync(exchanges.fail(self._recording, error))
            raise
        return response

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        if self.idempotency.guards(request):
            claimed = self.idempotency.exchanges.claim(self.idempotency.plan, request)
            if isinstance(claimed, HttpResponse):
                raise _Answered(claimed)
            self._recording = claimed
            running.set(claimed.run)

    def handle_exception(self, exc: Exception) -> Any:
        if isinstance(exc, _Answered):
            return exc.response
        return super().handle_exception(exc)  # type: ignore[misc]


class _Answered(Exception):
    """What comes before a view cannot answer, so it raises the answer."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__(response)
        self.response = response


# -- the exchange, in both colours


def _run(
    exchanges: Exchanges, guarded: Plan, request: HttpRequest, respond: Callable[[HttpRequest], Any]
) -> HttpResponseBase:
    claimed = exchanges.claim(guarded, request)
    if isinstance(claimed, HttpResponse):
        return claimed
    running.set(claimed.run)
    try:
        try:
            response = rendered(respond(request))
        except ANSWERED as error:
            response = response_for_exception(request, error)
        return run_sync(exchanges.settle(claimed, request, response))
    except BaseException as error:
        run_sync(exchanges.fail(claimed, error))
        raise


async def _arun(
    exchanges: Exchanges, guarded: Plan, request: HttpRequest, respond: Callable[[HttpRequest], Any]
) -> HttpResponseBase:
    """In a task of its own: Django cancels the request of a client that is gone, but a sync view goes on in its thread,
    and the outcome of any view is what the retry will ask for. Cancelled again, as when the server stops, it is too."""
    context = contextvars.copy_context()
    exchange = _aexchange(exchanges, guarded, request, respond)
    task = asyncio.get_running_loop().create_task(exchange, context=context)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _unwanted(await task)
        raise
    finally:
        for variable, value in context.items():  # what the view has set, the middleware outside may read
            if variable.get(None) is not value:
                variable.set(value)


async def _unwanted(response: HttpResponseBase) -> None:
    """Nobody will read it; a stream is read to its end here, up to what is kept of it."""
    await sync_to_async(response.close)()
    if isinstance(response, StreamingHttpResponse) and response.is_async:
        async for _ in response.streaming_content:
            pass


async def _aexchange(
    exchanges: Exchanges, guarded: Plan, request: HttpRequest, respond: Callable[[HttpRequest], Any]
) -> HttpResponseBase:
    claimed = await exchanges.aclaim(guarded, request)
    if isinstance(claimed, HttpResponse):
        return claimed
    running.set(claimed.run)
    try:
        try:
            response = await sync_to_async(rendered)(await respond(request))
        except ANSWERED as error:
            response = await sync_to_async(response_for_exception)(request, error)
        return await exchanges.settle(claimed, request, response)
    except BaseException as error:
        await exchanges.fail(claimed, error)
        raise


def _watch(recording: Recording, response: StreamingHttpResponse) -> None:
    if response.is_async:
        watched = AsyncWatched(recording, response.streaming_content)
        response.streaming_content = watched.passed_on()
        response._resource_closers.append(watched.close)
        return
    recording.client = recording.run.runtime.sync_client()  # Django iterates it in a thread
    response.streaming_content = Watched(recording, response.streaming_content, None)
    # Closed before what it watches is: it takes the rest from there.
    response._resource_closers.insert(0, response._resource_closers.pop())


# -- requests, responses, settings


def _length(request: HttpRequest) -> int:
    length = request.META.get("CONTENT_LENGTH") or "0"
    return int(length) if length.isdecimal() and len(length) <= 18 else 10**18


def body_of(request: HttpRequest, cap: int) -> bytes:
    """The body, which the view can read all the same; of a form that somebody has read already, what was in it."""
    if _length(request) > cap:
        raise PayloadTooLarge(f"the body is over max_body={cap}, it says")
    try:
        data: bytes = request.body
    except RequestDataTooBig as error:
        raise PayloadTooLarge(f"the body is over DATA_UPLOAD_MAX_MEMORY_SIZE: {error}") from error
    except RawPostDataException:
        files = [(name, file.name, file.read()) for name, each in request.FILES.lists() for file in each]
        for _, each in request.FILES.lists():
            for file in each:
                file.seek(0)
        data = canonical([list(request.POST.lists()), files])
    if len(data) > cap:
        raise PayloadTooLarge(f"the body is over max_body={cap}")
    return data


def rendered(response: Any) -> HttpResponseBase:
    """What a view returned, as a response with a body."""
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"the view returned {type(response).__name__} instead of a response")
    render = getattr(response, "render", None)
    return render() if callable(render) else response  # of a template, or REST framework's


def http_response(response: protocol.Response) -> HttpResponse:
    """A response of our own, or a stored one."""
    made = HttpResponse(response.body or b"", status=response.status)
    del made.headers["Content-Type"]
    for name, value in response.headers:
        made.headers[name] = value
    return made


def _options() -> dict[str, Any]:
    given = getattr(settings, "EFFECTONCE", None)
    known = {"DEFAULT": Route(), "ROUTES": None, "SERVICE": "http", "DOCS": protocol.DRAFT}
    if not isinstance(given, dict) or not {"STORE", "PRINCIPAL"} <= given.keys() <= {"STORE", "PRINCIPAL", *known}:
        raise ConfigurationError(
            f"the setting EFFECTONCE must be a dict with STORE and PRINCIPAL, and may also have {', '.join(known)}"
        )
    options = {**known, **given}
    for name in ("STORE", "PRINCIPAL", "ROUTES"):
        value = options[name]
        if isinstance(value, str) and "." in value and "://" not in value:
            options[name] = import_string(value)
    if isinstance(options["STORE"], str):
        options["STORE"] = connect(options["STORE"])
    return options

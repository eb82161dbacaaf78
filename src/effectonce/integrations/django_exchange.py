"""A Django request, from its claim to the settlement of its response, for sync and async stacks."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import (  # type: ignore[import-untyped, unused-ignore]
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.core.handlers.exception import response_for_exception  # type: ignore[import-untyped, unused-ignore]
from django.http import Http404, HttpRequest, HttpResponse  # type: ignore[import-untyped, unused-ignore]
from django.http.request import RawPostDataException, UnreadablePostError  # type: ignore[import-untyped, unused-ignore]
from django.http.response import HttpResponseBase, StreamingHttpResponse  # type: ignore[import-untyped, unused-ignore]

from effectonce.core.guarded_call.run import running
from effectonce.core.run_sync import run_sync
from effectonce.core.store_runtime import StoreClient
from effectonce.errors import EffectOnceError, PayloadTooLarge
from effectonce.http import protocol
from effectonce.http.exchange import HttpGuard, Principal, Recording, claim, make_principal_getter, read_key
from effectonce.http.routes import RoutePlan
from effectonce.http.streams import AsyncWatchedBody, WatchedBody
from effectonce.store import Store
from effectonce.values.fingerprint import canonical

METHODS = ("POST", "PATCH", "PUT", "DELETE")
#: Exceptions of a view that Django itself turns into a response.
_ANSWERED_BY_DJANGO = (Http404, PermissionDenied, BadRequest, SuspiciousOperation)


class DjangoExchanges:
    """Claims requests and settles their responses."""

    def __init__(
        self, store: Store, principal: Callable[..., Any] | str, raises: bool, service: str, docs: str
    ) -> None:
        self.guard = HttpGuard(store, service, docs)
        self._get_principal = make_principal_getter(principal)
        self._raises = raises

    def refusal(self, request: HttpRequest, error: EffectOnceError) -> HttpResponse:
        if self._raises:
            raise error
        return make_http_response(self.guard.refusal(error, str(request.method), request.path))

    def claim(self, guarded: RoutePlan, request: HttpRequest) -> Recording | HttpResponse:
        """The request, claimed, or what is answered instead."""
        try:
            key = self._key(guarded, request)
            return run_sync(
                self._claim(guarded, request, key, self._get_principal(request), self.guard.runtime.sync_client())
            )
        except EffectOnceError as error:
            return self.refusal(request, error)

    async def aclaim(self, guarded: RoutePlan, request: HttpRequest) -> Recording | HttpResponse:
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

    def _key(self, guarded: RoutePlan, request: HttpRequest) -> str:
        sent = request.META.get("HTTP_IDEMPOTENCY_KEY")
        return read_key(guarded, [] if sent is None else [sent.encode("latin-1", "replace")]) or ""

    async def _claim(
        self, guarded: RoutePlan, request: HttpRequest, key: str, principal: Principal, client: StoreClient
    ) -> Recording | HttpResponse:
        method, path, query = str(request.method), request.path, request.META.get("QUERY_STRING", "")
        raw_path = path.encode("utf-8", "surrogatepass")
        state = protocol.fingerprint_state(method, raw_path, query.encode("latin-1", "replace"))
        try:
            state.update(read_body(request, guarded.max_body))
        except UnreadablePostError:  # the client left in the middle of it
            return HttpResponse(status=400)
        run = self.guard.prepare(guarded, method, path, key, principal, protocol.fingerprint(state))
        stored = await claim(run, client)
        return make_http_response(stored) if stored is not None else Recording(guarded, run, client, self.guard.docs)

    async def settle(self, recording: Recording, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """``response``, settled, or to be settled when its stream ends; or another, where it must not be sent."""
        recording.start(response.status_code, response.headers.items())
        for name, value in recording.published:
            response.headers[name] = value
        if isinstance(response, StreamingHttpResponse):
            _watch_stream(recording, response)
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


# -- one exchange, sync and async


def run_exchange(
    exchanges: DjangoExchanges, guarded: RoutePlan, request: HttpRequest, respond: Callable[[HttpRequest], Any]
) -> HttpResponseBase:
    claimed = exchanges.claim(guarded, request)
    if isinstance(claimed, HttpResponse):
        return claimed
    running.set(claimed.run)
    try:
        try:
            response = render_response(respond(request))
        except _ANSWERED_BY_DJANGO as error:
            response = response_for_exception(request, error)
        return run_sync(exchanges.settle(claimed, request, response))
    except BaseException as error:
        run_sync(exchanges.fail(claimed, error))
        raise


async def run_exchange_async(
    exchanges: DjangoExchanges, guarded: RoutePlan, request: HttpRequest, respond: Callable[[HttpRequest], Any]
) -> HttpResponseBase:
    """In a task of its own: Django cancels the request of a client that is gone, but a sync view goes on in its thread,
    and the outcome of any view is what the retry will ask for. Cancelled again, as when the server stops, it is too."""
    context = contextvars.copy_context()
    exchange = _exchange_async(exchanges, guarded, request, respond)
    task = asyncio.get_running_loop().create_task(exchange, context=context)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _discard_response(await task)
        raise
    finally:
        for variable, value in context.items():  # what the view has set, the middleware outside may read
            if variable.get(None) is not value:
                variable.set(value)


async def _discard_response(response: HttpResponseBase) -> None:
    """Nobody will read it; a stream is read to its end here, up to what is kept of it."""
    await sync_to_async(response.close)()
    if isinstance(response, StreamingHttpResponse) and response.is_async:
        async for _ in response.streaming_content:
            pass


async def _exchange_async(
    exchanges: DjangoExchanges, guarded: RoutePlan, request: HttpRequest, respond: Callable[[HttpRequest], Any]
) -> HttpResponseBase:
    claimed = await exchanges.aclaim(guarded, request)
    if isinstance(claimed, HttpResponse):
        return claimed
    running.set(claimed.run)
    try:
        try:
            response = await sync_to_async(render_response)(await respond(request))
        except _ANSWERED_BY_DJANGO as error:
            response = await sync_to_async(response_for_exception)(request, error)
        return await exchanges.settle(claimed, request, response)
    except BaseException as error:
        await exchanges.fail(claimed, error)
        raise


def _watch_stream(recording: Recording, response: StreamingHttpResponse) -> None:
    if response.is_async:
        watched = AsyncWatchedBody(recording, response.streaming_content)
        response.streaming_content = watched.passed_on()
        response._resource_closers.append(watched.close)
        return
    recording.client = recording.run.runtime.sync_client()  # Django iterates it in a thread
    response.streaming_content = WatchedBody(recording, response.streaming_content, None)
    # Closed before what it watches is: it takes the rest from there.
    response._resource_closers.insert(0, response._resource_closers.pop())


# -- requests and responses


def content_length(request: HttpRequest) -> int:
    length = request.META.get("CONTENT_LENGTH") or "0"
    return int(length) if length.isdecimal() and len(length) <= 18 else 10**18


def read_body(request: HttpRequest, cap: int) -> bytes:
    """The body, which the view can read all the same; of a form that somebody has read already, what was in it."""
    if content_length(request) > cap:
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


def render_response(response: Any) -> HttpResponseBase:
    """What a view returned, as a response with a body."""
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"the view returned {type(response).__name__} instead of a response")
    render = getattr(response, "render", None)
    return render() if callable(render) else response  # of a template, or REST framework's


def make_http_response(response: protocol.Response) -> HttpResponse:
    """A response of our own, or a stored one."""
    made = HttpResponse(response.body or b"", status=response.status)
    del made.headers["Content-Type"]
    for name, value in response.headers:
        made.headers[name] = value
    return made

"""The guard of Django requests: claiming a request, running its view once, and settling its response.

The middleware, the decorator and the mixin are built on it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from copy import copy
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import RawPostDataException, UnreadablePostError
from django.http.response import HttpResponseBase, StreamingHttpResponse

from effectonce.core.run_sync import run_sync
from effectonce.errors import ConfigurationError, EffectOnceError, PayloadTooLarge, show
from effectonce.http import protocol
from effectonce.http.guard import HttpGuard, identify_request, key_lines
from effectonce.http.recorded_bodies import AsyncRecordedBody, RecordedBody
from effectonce.http.response_recording import ResponseRecording
from effectonce.http.routes import RoutePlan
from effectonce.values.awaitables import maybe_await
from effectonce.values.fingerprint import canonical_json

#: Exceptions of a view that Django itself turns into a response.
_ANSWERED_BY_DJANGO: Final = (Http404, PermissionDenied, BadRequest, SuspiciousOperation)

CAUSE_ATTRIBUTE: Final = "_effectonce_cause"
"""Of a request: what its view raised, where Django has made a response of that before the middleware sees it."""


class DjangoGuard(HttpGuard):
    """Claims Django's requests and settles their responses."""

    def refuse(self, request: HttpRequest, error: EffectOnceError) -> HttpResponse:
        return make_http_response(self.refusal(error, str(request.method), request.path))

    async def claim_request(
        self, plan: RoutePlan, request: HttpRequest, is_async: bool
    ) -> ResponseRecording | HttpResponse:
        """Claim ``request``. Returns a response to send instead of running the view, or the recording to settle.

        On an async stack, a sync ``principal=`` runs in a thread, since it may ask the database.
        """
        get_principal = self.get_principal
        if is_async and not iscoroutinefunction(get_principal):
            get_principal = sync_to_async(get_principal)
        try:
            key = protocol.parse_key(key_lines(request.META), plan.route.max_key)
            principal = await maybe_await(get_principal(request))
            stored_key = identify_request(principal, str(request.method), request.path, key)
            fingerprint = protocol.fingerprint(hash_request(request, plan.route.max_body))
            runtime = self.store.runtime
            client = runtime.async_client() if is_async else runtime.sync_client()
            claimed = await self.claim(plan, client, stored_key, fingerprint)
        except UnreadablePostError:  # the client left in the middle of its body
            return HttpResponse(status=400)
        except EffectOnceError as error:
            return self.refuse(request, error)
        return claimed if isinstance(claimed, ResponseRecording) else make_http_response(claimed)

    async def settle(
        self, recording: ResponseRecording, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        """Settle ``response``, at once or when its stream ends. Returns the response to send: a refusal, if that one
        could not be stored."""
        recording.cause = getattr(request, CAUSE_ATTRIBUTE, None)
        recording.start(response.status_code, response.headers.items())
        for name, value in recording.added_headers:
            response.headers[name] = value
        if isinstance(response, StreamingHttpResponse):
            _record_stream(recording, response)
            return response
        error = await recording.settle_and_end(response.content)
        return response if error is None else self.refuse(request, error)


# -- one request, sync and async


def respond_once(
    guard: DjangoGuard, plan: RoutePlan, request: HttpRequest, get_response: Callable[[HttpRequest], Any]
) -> HttpResponseBase:
    """Claim ``request``, call ``get_response`` and settle its response; or return the stored response of the key."""
    claimed = run_sync(guard.claim_request(plan, request, is_async=False))
    if isinstance(claimed, HttpResponse):
        return claimed
    try:
        try:
            response = render_response(get_response(request))
        except _ANSWERED_BY_DJANGO as error:
            response = response_for_exception(request, error)
        return run_sync(guard.settle(claimed, request, response))
    except BaseException as error:
        run_sync(claimed.fail_and_end(error))
        raise


async def respond_once_async(
    guard: DjangoGuard, plan: RoutePlan, request: HttpRequest, get_response: Callable[[HttpRequest], Any]
) -> HttpResponseBase:
    """`respond_once` in a task of its own.

    Django cancels the request when its client leaves. The view has to run to its end all the same: a sync one does so
    in its thread anyway, and the client's retry will ask for the outcome. A second cancellation, as when the server
    stops, cancels the task, too.
    """

    async def claim_and_respond() -> HttpResponseBase:
        claimed = await guard.claim_request(plan, request, is_async=True)
        if isinstance(claimed, HttpResponse):
            return claimed
        try:
            try:
                response = await sync_to_async(render_response)(await get_response(request))
            except _ANSWERED_BY_DJANGO as error:
                response = await sync_to_async(response_for_exception)(request, error)
            return await guard.settle(claimed, request, response)
        except BaseException as error:
            await claimed.fail_and_end(error)
            raise

    context = contextvars.copy_context()
    task = asyncio.get_running_loop().create_task(claim_and_respond(), context=context)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _discard_response(await task)
        raise
    finally:
        for variable, value in context.items():  # the middleware outside may read what the view has set
            if variable.get(None) is not value:
                variable.set(value)


async def _discard_response(response: HttpResponseBase) -> None:
    """Close a response whose client has left. A stream is read to its end, or until it is too long to store."""
    await sync_to_async(response.close)()
    if isinstance(response, StreamingHttpResponse) and response.is_async:
        async for _ in response.streaming_content:
            pass


def _record_stream(recording: ResponseRecording, response: StreamingHttpResponse) -> None:
    if response.is_async:
        # Read through a copy: a stream that held the response would keep it, and with it itself, from being collected
        # where a middleware drops it half read.
        body = AsyncRecordedBody(recording, copy(response).streaming_content)
        response.streaming_content = body.stream()
        response._resource_closers.append(body.close)
        return
    recording.client = recording.run.runtime.sync_client()  # Django iterates it in a thread
    response.streaming_content = RecordedBody(recording, response.streaming_content, None)
    # Our body must be closed before the stream under it: closing takes the rest from that stream.
    response._resource_closers.insert(0, response._resource_closers.pop())


# -- requests and responses


def hash_request(request: HttpRequest, limit: int) -> protocol.FingerprintState:
    """Hash method, path, query and body. Raises `PayloadTooLarge` where the body is over ``limit``."""
    query = request.META.get("QUERY_STRING", "").encode("latin-1", "replace")
    path = request.path.encode("utf-8", "surrogatepass")
    state = protocol.fingerprint_state(str(request.method), path, query)
    state.update(read_body(request, limit))
    return state


def read_body(request: HttpRequest, limit: int) -> bytes:
    """Return the body; the view can still read it. If a form was parsed before, its fields and files stand for the
    body. Raises `ConfigurationError` where the body was read from the stream, which cannot be read again."""
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not length.isdecimal():  # Django would fail on it
        raise PayloadTooLarge(f"the Content-Length {show(length)!r} is not a number")
    protocol.check_announced_length(length, limit)
    try:
        data: bytes = request.body
    except RequestDataTooBig as error:
        raise PayloadTooLarge(f"the body is over DATA_UPLOAD_MAX_MEMORY_SIZE: {error}") from error
    except RawPostDataException:
        if request.META.get("CONTENT_LENGTH") in ("", "0"):
            return b""
        if not request.POST and not request.FILES:  # no form was parsed, so what was read is gone
            raise ConfigurationError(
                "the body was read from the request's stream before the guard saw it, so two requests with different "
                "bodies would look the same; let that middleware read request.body, which can be read again, or put "
                "it after the guard"
            ) from None
        files = [(name, file) for name, group in request.FILES.lists() for file in group]
        data = canonical_json([list(request.POST.lists()), [(name, file.name, file.read()) for name, file in files]])
        for _, file in files:
            file.seek(0)
    if len(data) > limit:
        raise PayloadTooLarge(f"the body is over max_body={limit}")
    return data


def render_response(response: Any) -> HttpResponseBase:
    """Render what a view returned: a template's response, or REST framework's, has no body until then."""
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"the view returned {type(response).__name__} instead of a response")
    render = getattr(response, "render", None)
    return render() if callable(render) else response


def make_http_response(response: protocol.Response) -> HttpResponse:
    """Make a Django response from a stored response, or from a problem."""
    made = HttpResponse(response.body or b"", status=response.status)
    del made.headers["Content-Type"]
    for name, value in response.headers:
        made.headers[name] = value
    return made

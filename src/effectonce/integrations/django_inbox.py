"""Django, mode T: one commit for the claim, for what the view writes, and for its response.

    inbox = eo.Inbox(scope="orders")

    @transactional(inbox, principal=user_id, required=True)
    def order(request):
        Order.objects.create(…)
        return JsonResponse(…, status=201)

Nothing is lost and nothing is doubled, whenever the process dies: either all three are there, and a retry gets the
response, or none is, and it runs. That holds for what the view writes in this database, and for nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from django.db import connections, transaction  # type: ignore[import-untyped, unused-ignore]
from django.http import HttpRequest  # type: ignore[import-untyped, unused-ignore]
from django.http.request import UnreadablePostError  # type: ignore[import-untyped, unused-ignore]
from django.http.response import HttpResponse, HttpResponseBase  # type: ignore[import-untyped, unused-ignore]

from effectonce.contracts import Contention
from effectonce.errors import ConfigurationError, EffectOnceError, StoreUnavailable
from effectonce.guard.options import read_choice
from effectonce.http import protocol
from effectonce.http.exchange import make_principal_getter, principal_key, read_key, refusal
from effectonce.http.routes import TRANSIENT, Route, RoutePlan, make_route_plan
from effectonce.inbox.inbox import Inbox

from .django_exchange import METHODS, make_http_response, read_body, render_response

V = TypeVar("V", bound=Callable[..., Any])


def transactional(
    inbox: Inbox,
    *,
    principal: Callable[..., Any] | str,
    using: str = "default",
    required: bool = False,
    methods: tuple[str, ...] = METHODS,
    transient: tuple[int, ...] = TRANSIENT,
    max_key: int = 255,
    max_body: int = 1024 * 1024,
    keep_headers: tuple[str, ...] = (),
    errors: Literal["respond", "raise"] = "respond",
    docs: str = protocol.DRAFT,
) -> Callable[[V], V]:
    """Run a sync view in a transaction on the database ``using``, once for each key of a caller.

    ``principal`` is a function of the request that names its caller, or `GLOBAL`. An exception, a 5xx or a transient
    status rolls everything back, so that the retry runs; any other response is committed with the view's work and
    replayed. A second request while the first runs waits for it, as long as the lock timeout allows (then: 409). A
    response over the inbox's ``max_result`` is done without its body.
    """
    route = Route(
        required=required,
        methods=methods,
        transient=transient,
        max_key=max_key,
        max_body=max_body,
        keep_headers=keep_headers,
    )
    guarded = make_route_plan(route, inbox.scope)
    get_principal = make_principal_getter(principal)
    raises = read_choice("errors", errors, "raise", "respond")
    protocol.require_parser()

    def decorate(view: V) -> V:
        @functools.wraps(view)
        def once(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            run = functools.partial(view, request, *args, **kwargs)
            keyed = "HTTP_IDEMPOTENCY_KEY" in request.META
            if request.method not in methods or not (keyed or required):
                with transaction.atomic(using=using):
                    return render_response(run())
            try:
                return _exchange(inbox, guarded, get_principal, using, request, run)
            except Contention as error:
                failure: EffectOnceError = StoreUnavailable(f"the transaction was rolled back: {error}")
            except UnreadablePostError:  # the client left in the middle of its body
                return HttpResponse(status=400)
            except EffectOnceError as error:
                failure = error
            if raises:
                raise failure
            return make_http_response(refusal(failure, str(request.method), request.path, docs))

        return once  # type: ignore[return-value]

    return decorate


class _RolledBack(Exception):
    """A response whose work must not stay."""

    def __init__(self, response: HttpResponseBase) -> None:
        super().__init__(response.status_code)
        self.response = response


def _exchange(
    inbox: Inbox,
    guarded: RoutePlan,
    get_principal: Callable[..., Any],
    using: str,
    request: HttpRequest,
    run: Callable[[], Any],
) -> HttpResponseBase:
    sent = request.META.get("HTTP_IDEMPOTENCY_KEY")
    key = read_key(guarded, [] if sent is None else [sent.encode("latin-1", "replace")]) or ""
    identity = protocol.record_key(principal_key(get_principal(request)), str(request.method), request.path, key)
    query = request.META.get("QUERY_STRING", "").encode("latin-1", "replace")
    state = protocol.fingerprint_state(str(request.method), request.path.encode("utf-8", "surrogatepass"), query)
    state.update(read_body(request, guarded.max_body))
    made: list[HttpResponseBase] = []

    def work(connection: Any, key: str) -> protocol.Response:
        response = render_response(run())
        if response.status_code >= 500 or response.status_code in guarded.transient:
            raise _RolledBack(response)
        if response.streaming:
            raise ConfigurationError("a streamed response is not there yet when its transaction is committed")
        made.append(response)
        headers = protocol.kept(response.headers.items(), guarded.kept)
        return protocol.Response(response.status_code, headers, response.content)

    try:
        with transaction.atomic(using=using):
            outcome = inbox.call(connections[using], identity, work, payload=state.digest(), returns=protocol.Response)
    except _RolledBack as rolled_back:
        return rolled_back.response
    if outcome.replayed:
        return make_http_response(protocol.replay(outcome.value, inbox.retention_us))
    for name, value in protocol.published(inbox.retention_us):
        made[0].headers[name] = value
    return made[0]

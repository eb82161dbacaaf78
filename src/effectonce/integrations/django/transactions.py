"""Django views in mode T: the claim, what the view writes, and its response are committed in one transaction.

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
from typing import Any, Final, Literal, TypeVar

from django.db import connections, transaction
from django.http import HttpRequest
from django.http.request import UnreadablePostError
from django.http.response import HttpResponse, HttpResponseBase

from effectonce.contracts import Contention
from effectonce.errors import ConfigurationError, EffectOnceError, StoreUnavailable
from effectonce.guard.options import read_choice
from effectonce.http import protocol
from effectonce.http.guard import KEY_VARIABLE, identify_request, key_lines, make_principal_getter, refusal
from effectonce.http.routes import make_view_plan
from effectonce.inbox.inbox import Inbox
from effectonce.sessions import outage_error

from .request_guard import hash_request, make_http_response, render_response

V = TypeVar("V", bound=Callable[..., Any])

SUPPORTED_SETTINGS: Final = frozenset(("required", "methods", "transient", "max_key", "max_body", "keep_headers"))


def transactional(
    inbox: Inbox,
    *,
    principal: Callable[..., Any] | str,
    using: str = "default",
    errors: Literal["respond", "raise"] = "respond",
    docs: str = protocol.DRAFT_URL,
    **settings: Any,
) -> Callable[[V], V]:
    """Run a sync view in a transaction on the database ``using``, once for each key of a caller.

    ``principal`` is a function of the request that names its caller, or `GLOBAL`. ``settings`` are ``required``,
    ``methods``, ``transient``, ``max_key``, ``max_body`` and ``keep_headers`` of `http.Route`.

    An exception, a 5xx or a transient status rolls everything back, so that the retry runs; any other response is
    committed with the view's work and replayed. A second request while the first runs waits for it, as long as the lock
    timeout allows (then: 409). While the database is away it answers 503 with Retry-After. A response over the inbox's
    ``max_result`` is done without its body.
    """
    if settings.keys() - SUPPORTED_SETTINGS:
        raise TypeError(f"of the settings of http.Route, transactional takes {', '.join(sorted(SUPPORTED_SETTINGS))}")
    plan = make_view_plan(inbox.scope, settings)
    get_principal = make_principal_getter(principal)
    raises = read_choice("errors", errors, "raise", "respond")
    protocol.load_parser()

    def respond_once(request: HttpRequest, run_view: Callable[[], Any]) -> HttpResponseBase:
        key = protocol.parse_key(key_lines(request.META), plan.route.max_key)
        stored_key = identify_request(get_principal(request), str(request.method), request.path, key)
        payload = hash_request(request, plan.route.max_body).digest()
        response: HttpResponseBase

        def work(connection: Any, key: str) -> protocol.Response:
            nonlocal response
            response = render_response(run_view())
            if response.status_code >= 500 or response.status_code in plan.route.transient:
                raise _RollBack
            if response.streaming:
                raise ConfigurationError(
                    "a streamed response does not exist yet when its transaction is committed, so it cannot be stored; "
                    "return an HttpResponse"
                )
            headers = protocol.headers_to_store(response.headers.items(), plan.stored_headers)
            return protocol.Response(response.status_code, headers, response.content)

        try:
            with transaction.atomic(using=using):
                outcome = inbox.call(connections[using], stored_key, work, payload=payload, returns=protocol.Response)
        except _RollBack:
            return response
        if outcome.replayed:
            return make_http_response(protocol.replay(outcome.value, inbox.retention_us))
        for name, value in protocol.retention_headers(inbox.retention_us):
            response.headers[name] = value
        return response

    def decorate(view: V) -> V:
        @functools.wraps(view)
        def once(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            run_view = functools.partial(view, request, *args, **kwargs)
            if not plan.guards(request.method, KEY_VARIABLE in request.META):
                with transaction.atomic(using=using):
                    return render_response(run_view())
            try:
                return respond_once(request, run_view)
            except UnreadablePostError:  # the client left in the middle of its body
                return HttpResponse(status=400)
            except Contention as error:
                refused: EffectOnceError = StoreUnavailable(f"the transaction was rolled back: {error}")
            except EffectOnceError as error:
                refused = error
            except Exception as error:  # of the view, or of Django's own statements: BEGIN, COMMIT, a savepoint
                outage = outage_error(error)
                if outage is None:
                    raise
                refused = outage
                refused.__cause__ = error
            if raises:
                raise refused
            return make_http_response(refusal(refused, str(request.method), request.path, docs))

        once.transactional_database = using  # type: ignore[attr-defined]  # for the system checks
        return once  # type: ignore[return-value]

    return decorate


class _RollBack(Exception):
    """Rolls the transaction back, because of the status of the response."""

"""The middleware, for all views of a project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest

from effectonce.errors import ConfigurationError
from effectonce.http.guard import KEY_VARIABLE
from effectonce.http.routes import RouteTable

from .options import get_store, read_options
from .request_guard import CAUSE_ATTRIBUTE, DjangoGuard, respond_once, respond_once_async


def user_id(request: HttpRequest) -> str | None:
    """Return the id of the user that Django has authenticated; None if there is none."""
    user = getattr(request, "user", None)
    return str(user.pk) if user is not None and user.is_authenticated else None


class IdempotencyMiddleware:
    """Runs each keyed request once, and replays its response to every retry; for a sync or an async stack.

    The setting ``EFFECTONCE`` is a dict: ``STORE`` (the alias of a database, a URL, a `Store`, or the dotted path of
    one), ``PRINCIPAL`` (a function of the request that names its caller, or its dotted path; ``"*"`` is `GLOBAL`),
    ``SERVICE`` (the scope of its records, which no other project may have on the same store), and, if need be,
    ``DEFAULT`` (a `http.Route`, or None), ``ROUTES`` and ``DOCS``, as for `http.asgi.IdempotencyMiddleware`.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        options = read_options()
        if options["PRINCIPAL"] is None:
            raise ConfigurationError(
                "the middleware needs EFFECTONCE['PRINCIPAL'], which names the caller of a request: "
                "'effectonce.integrations.django.user_id', or '*' where all callers share their keys"
            )
        service = options["SERVICE"]
        self._guard = DjangoGuard(get_store(), service, options["DOCS"], principal=options["PRINCIPAL"])
        self._table = RouteTable(options["DEFAULT"], options["ROUTES"], service)
        is_async = iscoroutinefunction(get_response)
        self._respond_once = respond_once_async if is_async else respond_once
        if is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        plan = self._table.find(str(request.method), request.path, KEY_VARIABLE in request.META)
        if plan is None:
            return self._get_response(request)
        return self._respond_once(self._guard, plan, request, self._get_response)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """Keep what a view raised, for its record: Django makes a response of it, and calls this before."""
        setattr(request, CAUSE_ATTRIBUTE, exception)

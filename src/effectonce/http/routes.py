"""Routes: which requests are guarded and how, and the table that finds the route of a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, Literal

from msgspec import Struct

from effectonce.core.guarded_call.run import Policy
from effectonce.errors import ConfigurationError, show
from effectonce.guard.options import policy_options
from effectonce.store import DEFAULT_RETENTION
from effectonce.values.durations import Duration

from .protocol import NEVER_STORED_HEADERS, STORED_HEADERS, UNSAFE_METHODS, ResponseCodec

DEFAULT_METHODS: Final = ("POST", "PATCH")
TRANSIENT_STATUSES: Final = (401, 408, 425, 429)
"""Statuses that say "not now": the request did not take effect, and the same one may succeed later."""

SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"))


class Route(Struct, frozen=True, kw_only=True):
    """The settings of one route, or of all. Durations as everywhere: ``"30s"``, a `timedelta`, seconds.

    - ``required``: a request without a key is refused (400) instead of passed through.
    - ``methods``: which methods are guarded; PUT and DELETE by choice.
    - ``lease``, ``max_run``, ``retention``, ``wait``: as in `once`. Retention is published in a header.
    - ``on_error``: what a 5xx, an exception or a broken response means. ``"doubt"``: it may have taken effect, so it
      waits for an operator. ``"replay"``: that was the outcome, and retries get it too. ``"release"``: it was
      rolled back, so the retry runs.
    - ``on_lapse``: what the end of a lease means, after the process died. ``"doubt"``; ``"rerun"``, for effects that
      share a transaction with the claim or are idempotent; ``"resume"``: it runs too, and the handler continues where
      it was (``current().lapsed`` is true then).
    - ``on_store_error``: ``"raise"`` refuses (503) while the store does not answer; ``"run"`` runs unprotected.
    - ``transient``: statuses that release the key; every other below 500 is stored and replayed.
    - ``max_key`` characters, ``max_body`` and ``max_response`` bytes. A body over its cap is refused (413), a response
      over its cap is sent and not stored.
    - ``keep_headers``: response headers to store beside the usual ones.
    """

    required: bool = False
    methods: tuple[str, ...] = DEFAULT_METHODS
    lease: Duration = "30s"
    max_run: Duration = "1h"
    retention: Duration = DEFAULT_RETENTION
    wait: Duration | None = None
    on_error: Literal["doubt", "replay", "release"] = "doubt"
    on_lapse: Literal["doubt", "rerun", "resume"] = "doubt"
    on_store_error: Literal["raise", "run"] = "raise"
    transient: tuple[int, ...] = TRANSIENT_STATUSES
    max_key: int = 255
    max_body: int = 1024 * 1024
    max_response: int = 256 * 1024
    keep_headers: tuple[str, ...] = ()


Routes = Mapping[str, Route | None] | Callable[[str, str], Route | None]
"""Routes by pattern (``/orders/{id}/pay``, ``/files/*``; the first that matches counts), or a function of method and
path. None: such requests are not guarded."""


class RoutePlan(Struct, frozen=True, kw_only=True, eq=False):
    """A `Route`, checked and ready to be used."""

    route: Route
    policy: Policy
    stored_headers: frozenset[str]  # of a response, in lower case

    def guards(self, method: str | None, keyed: bool) -> bool:
        """Tell whether a request with this method is claimed. ``keyed``: it has an Idempotency-Key."""
        return method in self.route.methods and (keyed or self.route.required)


def make_route_plan(route: Route, service: str) -> RoutePlan:
    """Check ``route`` and make its plan. ``service`` is the scope of its records."""
    if not isinstance(route, Route):
        raise ConfigurationError(f"{show(repr(route))} is not a route; write Route(required=True), of effectonce.http")
    safe = SAFE_METHODS.intersection(_check_names("methods", route.methods))
    if safe:
        raise ConfigurationError(f"methods={sorted(route.methods)}: {', '.join(sorted(safe))} change nothing")
    kept_headers = frozenset(name.lower() for name in _check_names("keep_headers", route.keep_headers))
    if kept_headers & NEVER_STORED_HEADERS:
        raise ConfigurationError(
            f"keep_headers: {', '.join(sorted(kept_headers & NEVER_STORED_HEADERS))} belongs to one client or one "
            "connection and must not be replayed to another"
        )
    for name, choices in (("on_error", ("doubt", "replay", "release")), ("on_lapse", ("doubt", "rerun", "resume"))):
        if getattr(route, name) not in choices:
            raise ConfigurationError(f"{name}={getattr(route, name)!r} is not one of {', '.join(map(repr, choices))}")
    for name in ("max_key", "max_body", "max_response"):
        size = getattr(route, name)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigurationError(f"{name}={size!r} is not a size; give a whole number above zero")
    # The guard knows two of the three choices. To it, "replay" releases, and "resume" runs again: `ResponseRecording`
    # stores the response of a "replay" before the guard is asked, and "resume" differs only in the handler's own code.
    options = policy_options(
        lease=route.lease,
        retention=route.retention,
        wait=route.wait,
        max_run=route.max_run,
        on_error="doubt" if route.on_error == "doubt" else "release",
        on_lapse="doubt" if route.on_lapse == "doubt" else "rerun",
        on_store_error=route.on_store_error,
    )
    return RoutePlan(
        route=route,
        policy=Policy(scope=service, codec=ResponseCodec(route.max_response), **options),
        stored_headers=STORED_HEADERS | kept_headers,
    )


def make_view_plan(service: str, settings: Mapping[str, Any]) -> RoutePlan:
    """Make the plan of one decorated view. It guards PUT and DELETE, too, unless ``settings`` name other methods."""
    return make_route_plan(Route(**{"methods": UNSAFE_METHODS, **settings}), service)


def _check_names(option: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"{option} takes a tuple of names, not {show(repr(names))}")
    return names


class RouteTable:
    """Finds the plan of a request. Routes are checked when the table is made; those of a callable when it first returns
    them."""

    def __init__(self, default: Route | None, routes: Routes | None, service: str) -> None:
        self._default = None if default is None else make_route_plan(default, service)
        self._patterns: list[tuple[re.Pattern[str], RoutePlan | None]] = []
        self._find_route: Callable[[str, str], Route | None] | None = None
        #: The plan of a route that `_find_route` returned.
        self._plan_for = lru_cache(256)(partial(make_route_plan, service=service))
        if routes is None or isinstance(routes, Mapping):
            for pattern, route in (routes or {}).items():
                self._patterns.append(
                    (_compile_pattern(pattern), None if route is None else make_route_plan(route, service))
                )
        elif callable(routes):
            self._find_route = routes
        else:
            raise ConfigurationError("routes= takes a mapping of patterns to Route, or a callable of method and path")

    def find(self, method: str, path: str, keyed: bool) -> RoutePlan | None:
        """Return the plan of a request; None if it is not guarded."""
        if method in SAFE_METHODS:
            return None
        plan = self._plan_of(method, path)
        return plan if plan is not None and plan.guards(method, keyed) else None

    def _plan_of(self, method: str, path: str) -> RoutePlan | None:
        if self._find_route is not None:
            route = self._find_route(method, path)
            return None if route is None else self._plan_for(route)
        for pattern, plan in self._patterns:
            if pattern.fullmatch(path):
                return plan
        return self._default


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern: ``{name}`` stands for one segment of a path, ``*`` for any number of characters."""
    if not isinstance(pattern, str) or not pattern.startswith(("/", "*")):
        raise ConfigurationError(f"routes: {show(repr(pattern))} is not a path; write it like '/orders/{{id}}/pay'")
    parts = re.split(r"(\{[^{}/]*\}|\*)", pattern)
    return re.compile("".join(map(_pattern_part, parts)), re.DOTALL)


def _pattern_part(part: str) -> str:
    if part == "*":
        return ".*"
    return "[^/]+" if part.startswith("{") else re.escape(part)

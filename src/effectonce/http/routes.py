"""What holds for which request: the settings of a route, and the route of a path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from effectonce.core.guarded_call.run import Policy
from effectonce.errors import ConfigurationError, show
from effectonce.guard.options import policy_options
from effectonce.store import DEFAULT_RETENTION
from effectonce.values.durations import Duration

from .protocol import DROPPED, KEPT, ResponseCodec

METHODS: Final = ("POST", "PATCH")
TRANSIENT: Final = (401, 408, 425, 429)
"""Answers that say "not now": the request did not take effect, and the same one may succeed later."""

SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"))


class Route(Struct, frozen=True, kw_only=True):
    """The settings of one route, or of all. Durations as everywhere: ``"30s"``, a `timedelta`, seconds.

    - ``required``: a request without a key is refused (400) instead of passed through.
    - ``methods``: which methods are guarded; PUT and DELETE by choice.
    - ``lease``, ``max_run``, ``retention``, ``wait``: as of `once`. Retention is published in a header.
    - ``on_error``: what a 5xx, an exception or a broken response means. ``"doubt"``: nobody knows if it took effect, so
      it waits for an operator. ``"replay"``: that was the outcome, and retries get it too. ``"release"``: it was
      rolled back, so the retry runs.
    - ``on_lapse``: what the end of a lease means, after the process died. ``"doubt"``; ``"rerun"``, for effects that
      share a transaction with the claim or are idempotent; ``"resume"``: it runs too, and the handler continues where
      it was (``current().lapsed`` tells it).
    - ``on_store_error``: ``"raise"`` refuses (503) while the store does not answer; ``"run"`` runs unprotected.
    - ``transient``: statuses that release the key; every other below 500 is stored and replayed.
    - ``max_key`` characters, ``max_body`` and ``max_response`` bytes. A body over its cap is refused (413), a response
      over its cap is sent and not stored.
    - ``keep_headers``: response headers to store beside the usual ones.
    """

    required: bool = False
    methods: tuple[str, ...] = METHODS
    lease: Duration = "30s"
    max_run: Duration = "1h"
    retention: Duration = DEFAULT_RETENTION
    wait: Duration | None = None
    on_error: Literal["doubt", "replay", "release"] = "doubt"
    on_lapse: Literal["doubt", "rerun", "resume"] = "doubt"
    on_store_error: Literal["raise", "run"] = "raise"
    transient: tuple[int, ...] = TRANSIENT
    max_key: int = 255
    max_body: int = 1024 * 1024
    max_response: int = 256 * 1024
    keep_headers: tuple[str, ...] = ()


Routes = Mapping[str, Route | None] | Callable[[str, str], Route | None]
"""By pattern (``/orders/{id}/pay``, ``/files/*``; the first that matches counts), or asked with method and path. None:
not guarded."""


class RoutePlan(Struct, frozen=True, kw_only=True, eq=False):
    """A `Route`, checked and ready to be used."""

    policy: Policy
    required: bool
    methods: frozenset[str]
    on_error: str
    transient: frozenset[int]
    kept: frozenset[str]
    max_key: int
    max_body: int
    max_response: int


def make_route_plan(route: Route, service: str) -> RoutePlan:
    """``route`` as it is used, its records under the scope ``service``."""
    methods = frozenset(_named("methods", route.methods))
    if methods & SAFE:
        raise ConfigurationError(f"methods={sorted(methods)}: {', '.join(sorted(methods & SAFE))} change nothing")
    wanted = frozenset(name.lower() for name in _named("keep_headers", route.keep_headers))
    if wanted & DROPPED:
        raise ConfigurationError(
            f"keep_headers: {', '.join(sorted(wanted & DROPPED))} belongs to one client or one connection and must not "
            "be replayed to another"
        )
    for name, value, choices in (
        ("on_error", route.on_error, ("doubt", "replay", "release")),
        ("on_lapse", route.on_lapse, ("doubt", "rerun", "resume")),
    ):
        if value not in choices:
            raise ConfigurationError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}")
    for name, size in (
        ("max_key", route.max_key),
        ("max_body", route.max_body),
        ("max_response", route.max_response),
    ):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigurationError(f"{name}={size!r} is not a size; give a whole number above zero")
    options = policy_options(
        mode="lease",
        lease=route.lease,
        retention=route.retention,
        wait=route.wait,
        max_run=route.max_run,
        on_error="doubt" if route.on_error == "doubt" else "release",
        on_lapse="doubt" if route.on_lapse == "doubt" else "rerun",
        on_store_error=route.on_store_error,
    )
    return RoutePlan(
        policy=Policy(scope=service, codec=ResponseCodec(route.max_response), **options),
        required=route.required,
        methods=methods,
        on_error=route.on_error,
        transient=frozenset(route.transient),
        kept=KEPT | wanted,
        max_key=route.max_key,
        max_body=route.max_body,
        max_response=route.max_response,
    )


def _named(option: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"{option} takes a tuple of names, not {show(repr(names))}")
    return names


class RouteTable:
    """Which plan holds for a request; every plan is made when the table is."""

    def __init__(self, default: Route | None, routes: Routes | None, service: str) -> None:
        self._default = None if default is None else make_route_plan(default, service)
        self._asked: Callable[[str, str], Route | None] | None = None
        self._patterns: list[tuple[re.Pattern[str], RoutePlan | None]] = []
        known = [] if self._default is None else [self._default]
        #: The methods that any route guards, or None where only asking tells.
        self.methods: frozenset[str] | None = None
        self.requires = True
        if routes is None or isinstance(routes, Mapping):
            for pattern, route in (routes or {}).items():
                made = None if route is None else make_route_plan(route, service)
                self._patterns.append((_compiled(pattern), made))
                known += [made] if made is not None else []
            self.methods = frozenset().union(*(each.methods for each in known))
            self.requires = any(each.required for each in known)
        elif callable(routes):
            self._asked = routes
        else:
            raise ConfigurationError("routes= takes a mapping of patterns to Route, or a callable of method and path")
        self._planned = lru_cache(256)(lambda route: make_route_plan(route, service))

    def find(self, method: str, path: str) -> RoutePlan | None:
        """The plan for a request; None where it is not guarded."""
        found = self._default
        if self._asked is not None:
            route = self._asked(method, path)
            found = None if route is None else self._planned(route)
        else:
            for pattern, each in self._patterns:
                if pattern.fullmatch(path):
                    found = each
                    break
        return found if found is not None and method in found.methods else None


def _compiled(pattern: str) -> re.Pattern[str]:
    """``{name}`` stands for one segment of a path, ``*`` for any number of characters."""
    if not isinstance(pattern, str) or not pattern.startswith(("/", "*")):
        raise ConfigurationError(f"routes: {show(repr(pattern))} is no path; write it like '/orders/{{id}}/pay'")
    parts = re.split(r"(\{[^{}/]*\}|\*)", pattern)
    texts = (".*" if part == "*" else "[^/]+" if part.startswith("{") else re.escape(part) for part in parts)
    return re.compile("".join(texts), re.DOTALL)

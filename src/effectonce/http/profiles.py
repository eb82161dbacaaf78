"""Profiles: how the protocols of agent commerce differ from the draft of Idempotency-Key, as data.

    IdempotencyMiddleware(app, store, principal=agent_id, profile=ACP, default=ACP.route(retention="30d"))

`ACP` is the Agentic Commerce Protocol of 2026-04-17 (checkout and delegated payment), `AdCP` the Ad Context Protocol
3.1. Whatever a profile leaves out is as in the draft.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from effectonce import errors
from effectonce.errors import ConfigurationError, EffectOnceError, InvalidKey, MissingKey
from effectonce.values.durations import micros
from effectonce.values.fingerprint import fingerprints

from . import protocol
from .problems import describe, problem
from .protocol import Response
from .routes import Route

CLOCK_SKEW_S: Final = 60.0
"""A retry that comes this long after the end of the replay window still gets its response."""

_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: it is nested too deeply

Members = tuple[str, ...]  # the path of a member in a JSON object


class ErrorCode(NamedTuple):
    """How a profile names one kind of error."""

    code: str
    kind: str  # ACP: the type; AdCP: what the client can do about it


class _BodyNotJSON(InvalidKey):
    """The body, which has the key or is compared, is not JSON."""


class BodyKey(NamedTuple):
    """What a profile reads in the body of a request."""

    key: str | None
    fingerprint: bytes


class Profile(Struct, frozen=True, kw_only=True):
    """One way to speak about idempotency keys over HTTP."""

    name: str
    #: How errors are written: as problem+json, as one flat object (ACP), or as a list ``errors`` (AdCP).
    errors: Literal["problem", "flat", "list"] = "problem"
    #: The names of errors, by class. An error of another class has the name of the nearest of its bases.
    codes: Mapping[type[EffectOnceError], ErrorCode] = field(default_factory=dict)
    #: The member of the JSON body that is the key; "": the key is in the header.
    key_member: str = ""
    #: What a key looks like; "": anything.
    key_pattern: str = ""
    #: The same key on another path is another operation; otherwise it is a mismatch.
    keys_by_path: bool = True
    #: Bodies are compared as JSON, in which ``1.0`` is ``1`` and the order of members does not count; otherwise byte by
    #: byte.
    compares_json: bool = False
    #: Members of the body that are not compared.
    uncompared: tuple[Members, ...] = ()
    #: Every answer has the Idempotency-Key header of its request.
    echoes_key: bool = False
    #: The member of a replayed JSON object that is set to true, beside the header.
    replayed_member: str = ""
    #: The values of the member ``status`` of a response that is kept; (): they do not count.
    kept_statuses: tuple[str, ...] = ()
    #: For how long responses are replayed; after that the key is refused as expired. None: for the retention.
    replay_window_s: int | None = None
    #: How many new keys a second each caller may use, for a minute, and in one burst; 0: any number.
    keys_per_s: int = 0
    burst: int = 0
    #: The settings of its routes that differ from those of `Route`.
    settings: Mapping[str, Any] = field(default_factory=dict)

    def route(self, **settings: Any) -> Route:
        """Make a route of this profile. ``settings`` are those of `Route`."""
        route = Route(**{**self.settings, **settings})
        if self.replay_window_s is not None and micros(route.retention, "retention") <= self.replay_window_s * 1e6:
            raise ConfigurationError(
                f"retention={route.retention!r}: {self.name} replays for {self.replay_window_s} s, and refuses a key "
                "as expired for as long as it is kept after that; keep keys for longer"
            )
        return route

    @property
    def reads_body(self) -> bool:
        """Whether the body has to be read as JSON before the claim."""
        return bool(self.key_member) or self.compares_json

    def read_body(self, body: bytes, key: str | None, place: Sequence[str]) -> BodyKey:
        """Read the key, unless the header had it as ``key``, and make the fingerprint of a request to ``place``: its
        method, path and query."""
        try:
            payload = msgspec.json.decode(body) if body else None
        except _NOT_JSON as error:
            raise _BodyNotJSON("the body is not JSON") from error
        if self.key_member:
            key = payload.get(self.key_member) if isinstance(payload, dict) else None
            if key is not None and not isinstance(key, str):
                raise InvalidKey(f"{self.key_member} is not a string")
        if key is not None and self.key_pattern and re.fullmatch(self.key_pattern, key) is None:
            raise InvalidKey(f"the key does not match {self.key_pattern}")
        for members in self.uncompared:
            payload = _without(payload, members)
        return BodyKey(key, fingerprints([*place, payload]))

    def require_key(self, key: str | None) -> str:
        if key is None:
            raise MissingKey(f"the request has no {self.key_member or 'Idempotency-Key'}")
        return key

    def keeps(self, body: bytes) -> bool:
        """Whether a response with this ``body``, and a status that is stored, is a success by its own words."""
        if not self.kept_statuses:
            return True
        members = _members_of(body)
        if members is None:
            return True
        return not members.get("errors") and members.get("status", self.kept_statuses[0]) in self.kept_statuses

    def stamp(self, response: Response) -> Response:
        """Note on a response that is about to be stored when that was, if it is not replayed for ever."""
        if self.replay_window_s is not None:
            response.stored_at = time.time()
        return response

    # -- answers

    def replay(self, stored: Response, retention_us: int) -> Response:
        """Return the response to a retry: the stored one, or that its key has expired."""
        window_s = self.replay_window_s
        if window_s is not None and time.time() > stored.stored_at + window_s + CLOCK_SKEW_S:
            expired = ErrorCode("IDEMPOTENCY_EXPIRED", "correctable")
            text = "The replay window of this key is over. Look up what it did before you send a new key."
            return self._write(409, expired, text, None)
        if self.replayed_member and stored.body:
            stored.body = _with_member(stored.body, self.replayed_member)
        return protocol.replay(stored, retention_us)

    def answer(self, error: EffectOnceError, docs: str) -> Response:
        """Return ``error`` as this profile writes it. Its own text is left out."""
        if self.errors == "problem":
            return problem(error, docs)
        text = describe(error)
        code = next(self.codes[kind] for kind in type(error).__mro__ if kind in self.codes)
        message = text.detail
        if isinstance(error, _BodyNotJSON):
            message = "The body must be JSON."
        elif self.key_member and isinstance(error, MissingKey | InvalidKey):
            message = f"The body needs a member {self.key_member}: a string that matches {self.key_pattern}."
        return self._write(text.status, code, message, text.retry_after)

    def rate_limited(self, retry_after: int) -> Response:
        """Return the answer to a caller that uses more new keys than it may."""
        return self._write(429, ErrorCode("RATE_LIMITED", "transient"), "Too many new keys.", retry_after)

    def _write(self, status: int, code: ErrorCode, message: str, retry_after: int | None) -> Response:
        after = {} if retry_after is None else {"retry_after": retry_after}
        if self.errors == "flat":
            body: dict[str, Any] = {"type": code.kind, "code": code.code, "message": message}
        else:
            body = {"errors": [{"code": code.code, "message": message, "recovery": code.kind, **after}]}
        content = msgspec.json.encode(body)
        headers = [("content-type", "application/json"), ("cache-control", "no-store")]
        if retry_after is not None:
            headers.append(("retry-after", str(retry_after)))
        return Response(status, [*headers, ("content-length", str(len(content)))], content)


DRAFT: Final = Profile(name="draft-ietf-httpapi-idempotency-key-header-07")

_IN_FLIGHT: Final = ErrorCode("idempotency_in_flight", "invalid_request")
#: Every POST has a key. The body counts as JSON, and what answered 5xx runs again.
ACP: Final = Profile(
    name="ACP",
    errors="flat",
    codes={
        errors.MissingKey: ErrorCode("idempotency_key_required", "invalid_request"),
        errors.InvalidKey: ErrorCode("invalid", "invalid_request"),
        errors.PayloadMismatch: ErrorCode("idempotency_conflict", "invalid_request"),
        errors.PayloadTooLarge: ErrorCode("invalid", "invalid_request"),
        errors.InProgress: _IN_FLIGHT,
        errors.Reentered: _IN_FLIGHT,
        errors.LeaseLost: _IN_FLIGHT,
        errors.Retryable: ErrorCode("service_unavailable", "service_unavailable"),
        errors.EffectOnceError: ErrorCode("processing_error", "processing_error"),
    },
    compares_json=True,
    echoes_key=True,
    settings={"required": True, "methods": ("POST",), "on_error": "release"},
)

_SUCCESSES: Final = range(200, 300)
_INVALID: Final = ErrorCode("INVALID_REQUEST", "correctable")
_ADCP_IN_FLIGHT: Final = ErrorCode("IDEMPOTENCY_IN_FLIGHT", "transient")
#: The key is a member of the body. Only successes are kept, and replayed for a day; the key is known for two weeks.
AdCP: Final = Profile(
    name="AdCP",
    errors="list",
    codes={
        errors.MissingKey: _INVALID,
        errors.InvalidKey: _INVALID,
        errors.PayloadTooLarge: _INVALID,
        errors.MissingPrincipal: ErrorCode("AUTH_REQUIRED", "correctable"),
        errors.PayloadMismatch: ErrorCode("IDEMPOTENCY_CONFLICT", "correctable"),
        errors.InProgress: _ADCP_IN_FLIGHT,
        errors.Reentered: _ADCP_IN_FLIGHT,
        errors.LeaseLost: _ADCP_IN_FLIGHT,
        errors.EffectOnceError: ErrorCode("SERVICE_UNAVAILABLE", "transient"),
    },
    key_member="idempotency_key",
    key_pattern=r"[A-Za-z0-9_.:-]{16,255}",
    keys_by_path=False,
    compares_json=True,
    uncompared=(
        ("idempotency_key",),
        ("context",),
        ("governance_context",),
        ("push_notification_config", "authentication", "credentials"),
    ),
    replayed_member="replayed",
    kept_statuses=("completed", "submitted"),
    replay_window_s=86_400,
    keys_per_s=60,
    burst=300,
    settings={
        "required": True,
        "methods": ("POST",),
        "retention": "15d",
        "on_error": "release",
        "on_lapse": "resume",
        "transient": tuple(status for status in range(100, 600) if status not in _SUCCESSES),
    },
)


def adcp_capabilities(profile: Profile, route: Route) -> dict[str, Any]:
    """Return what ``get_adcp_capabilities`` declares: ``adcp.idempotency``, as `AdCP` and its ``route`` keep it."""
    window_s = profile.replay_window_s
    if window_s is None or not 3_600 <= window_s <= 604_800:
        raise ConfigurationError(f"replay_window_s={window_s}: AdCP wants 3600 to 604800 seconds")
    in_flight_s = micros(route.max_run, "max_run") // 1_000_000 + micros(route.lease, "lease") // 1_000_000
    return {"supported": True, "replay_ttl_seconds": window_s, "in_flight_max_seconds": in_flight_s}


def _without(payload: Any, members: Members) -> Any:
    """Return ``payload`` without the member at this path."""
    name, *rest = members
    if not isinstance(payload, dict) or name not in payload:
        return payload
    if not rest:
        return {other: value for other, value in payload.items() if other != name}
    return {**payload, name: _without(payload[name], tuple(rest))}


def _members_of(body: bytes) -> dict[str, Any] | None:
    try:
        members = msgspec.json.decode(body)
    except _NOT_JSON:
        return None
    return members if isinstance(members, dict) else None


def _with_member(body: bytes, name: str) -> bytes:
    """Return a JSON object with the member ``name`` set to true, and all other members byte for byte; any other body as
    it is."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except _NOT_JSON:
        return body
    return msgspec.json.encode({**members, name: msgspec.Raw(b"true")})

"""Random traffic against the middleware: never a 500 of ours, never a double run, never another user's response."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.http import Route
from effectonce.http.asgi import IdempotencyMiddleware
from effectonce.http.protocol import parse_key
from effectonce.testing import ManualClock

from .conftest import Answer, Asgi, Call, Reply, Stack, Wsgi

OURS = {400, 401, 409, 413, 422, 503}


class Boom(Exception):
    """The application's own."""


# -- the header


@given(st.lists(st.binary(max_size=80), max_size=3), st.integers(1, 300))
def test_any_header_is_a_key_or_an_error_of_ours(values: list[bytes], limit: int) -> None:
    try:
        key = parse_key(values, limit)
    except eo.InvalidKey:
        return
    except eo.MissingKey:
        assert values == []
        return
    assert 1 <= len(key) <= limit
    assert key.isascii()
    assert key.isprintable()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255))
def test_any_printable_text_can_be_a_key(text: str) -> None:
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse_key([quoted.encode()]) == text


@given(st.binary(max_size=40).map(lambda raw: b'"a";' + raw))
def test_parameters_never_break_it(value: bytes) -> None:
    try:
        assert parse_key([value]) == "a"
    except eo.InvalidKey:
        pass


# -- traffic

# Few values, so that requests meet each other's records.
HEADERS = st.one_of(
    st.sampled_from(["k1", '"k1"', "k1", "k2"]),
    st.sampled_from([None, '"', "", "k1, k1"]),
    st.text(st.characters(max_codepoint=255), max_size=12),
)
USERS = st.sampled_from(["alice", "bob", "alice", "bob", ""])
STATUSES = [200, 200, 201, 204, 302, 400, 404, 401, 429, 500, 503]
BEHAVIOURS = st.tuples(
    st.sampled_from(STATUSES),
    st.lists(st.binary(max_size=30).map(lambda raw: raw.replace(b"<", b"")), max_size=4),  # no user's mark
    st.sampled_from(["whole", "whole", "whole", "raise at once", "raise after"]),
)
REQUESTS = st.tuples(
    USERS,
    HEADERS,
    st.sampled_from(["POST", "POST", "POST", "PATCH", "PUT"]),
    st.sampled_from(["/a", "/a", "/a", "/b", "/é%\x00"]),
    st.sampled_from(["", "", "", "q=1"]),
    st.sampled_from([[b"{}"], [b"{}"], [b"{", b"}"], [b"other"], [b"o" * 41]]),
    BEHAVIOURS,
)


@pytest.mark.quick_on("Asgi")
@pytest.mark.parametrize("kind", [Asgi, Wsgi])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traffic=st.lists(REQUESTS, min_size=1, max_size=12), on_error=st.sampled_from(["doubt", "replay", "release"]))
def test_any_traffic(kind: type[Stack], traffic: list[Any], on_error: Any) -> None:
    stack, clock = kind(), ManualClock()
    effects: Counter[tuple[str, ...]] = Counter()
    now: dict[str, Any] = {}

    def handler(call: Call) -> Answer:
        user, header, method, path, _, _, (status, chunks, how) = now["request"]
        mark = f"<{user}>".encode()
        rolled_back = on_error == "release" and (how != "whole" or status >= 500)
        if header is not None and method != "PUT" and status not in (401, 429) and not rolled_back:
            effects[(user, method, path, parse_key([header.encode("latin-1")]))] += 1
        if how == "raise at once":
            raise Boom
        body = b"" if status == 204 else [mark, *chunks, mark]
        return Answer(status, body, then=Boom() if how == "raise after" else None)

    stack.handler = handler
    stack.guard(
        eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None),
        Route(on_error=on_error, max_body=40, max_response=90),
    )
    for request in traffic:
        now["request"] = request
        user, header, method, path, query, parts, (status, _, _) = request
        before = len(stack.calls)
        try:
            reply = stack.request(header, ("X-User", user), method=method, path=path, query=query, body=parts)
        except Boom:
            assert len(stack.calls) == before + 1
            continue
        ran = len(stack.calls) > before
        assert reply.status in ({status} if ran else OURS | {*STATUSES}), "a status that neither side sent"
        if not ran and reply.status >= 500:
            assert reply.replayed
        for other in ("alice", "bob", ""):
            if other != user:
                assert f"<{other}>".encode() not in reply.body, "another user's response"
        if header is not None and method != "PUT" and not readable(header):
            assert (reply.status, ran) == (400, False), "an unreadable key is ignored"
    assert set(effects.values()) <= {1}, "a double run"


def readable(header: str) -> bool:
    try:
        return bool(parse_key([header.encode("latin-1")]))
    except eo.InvalidKey:
        return False


# -- messages in any order


MESSAGES = st.lists(
    st.sampled_from(
        [
            {"type": "http.response.start", "status": 200, "headers": []},
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]},
            {"type": "http.response.start", "status": 500, "headers": [(b"content-length", b"nonsense")]},
            {"type": "http.response.body", "body": b"abc", "more_body": True},
            {"type": "http.response.body", "body": b"abc"},
            {"type": "http.response.body"},
            {"type": "http.response.trailers", "headers": []},
            {"type": "http.response.debug"},
        ]
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(sent=MESSAGES, received=st.lists(st.sampled_from(["part", "end", "disconnect"]), min_size=1, max_size=5))
def test_an_application_and_a_client_that_break_the_rules(sent: list[Any], received: list[str]) -> None:
    """Whatever they send, in whatever order: it runs at most once, and the record is settled or lapses into doubt."""
    store = eo.Store(MemoryStoreBackend(clock=ManualClock()), sweep_every=None)
    runs: list[int] = []
    out: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(1)
        for message in sent:
            await send(dict(message))

    middleware = IdempotencyMiddleware(app, store, principal=eo.GLOBAL)
    scope = {
        "type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [(b"idempotency-key", b"k")],
    }  # fmt: skip

    async def exchange(parts: list[str]) -> None:
        rest = iter([*parts, "disconnect"])

        async def receive() -> Any:
            part = next(rest, "disconnect")
            if part == "disconnect":
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": b"x", "more_body": part == "part"}

        async def send(message: Any) -> None:
            out.append(message)

        await middleware(scope, receive, send)

    asyncio.run(exchange(received))
    asyncio.run(exchange(received))
    assert len(runs) <= 1
    states = [record.state for record in store.list().records]
    whole = "end" in received and "disconnect" not in received[: received.index("end")]
    assert states in ([["done"], ["in_doubt"]] if whole else [[]])


def test_the_oracle_sees_a_leak(clock: ManualClock) -> None:
    """The check itself: without a principal in the lookup, the traffic above would be caught."""
    stack = Asgi()
    stack.handler = lambda call: Answer(200, f"<{call.headers['x-user']}>".encode())
    stack.guard(eo.Store(MemoryStoreBackend(clock=clock)), principal=eo.GLOBAL)
    replies: list[Reply] = [stack.request("k", ("X-User", user)) for user in ("alice", "bob")]
    assert b"<alice>" in replies[1].body

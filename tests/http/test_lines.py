"""What the middleware must do, line by line; the numbers are those of the HTTP requirements.

Each test runs on the ASGI and on the WSGI middleware.
"""

from __future__ import annotations

import gzip
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.middleware.gzip import GZipMiddleware

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.http import Response, Route, asgi, record_key, wsgi
from effectonce.http.protocol import NEVER_STORED_HEADERS
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend, down, fine

from .conftest import ALICE, BOB, Answer, Asgi, Call, Reply, Stack

UUID = "8e03978e-40d5-43e8-bc93-6894a57f9324"


def only(store: eo.Store) -> eo.Record:
    (record,) = store.list().records
    return record


# -- input


@pytest.mark.parametrize(
    ("sent", "same"), [('"k"', "k"), (f'"{UUID}"', UUID), ('"k"', '"k";v=1'), ("k", "k;v=1"), ('"a:b/c"', "a:b/c")]
)
def test_01_a_string_and_a_bare_token_are_the_same_key(stack: Stack, store: eo.Store, sent: str, same: str) -> None:
    stack.guard(store)
    assert not stack.request(sent).replayed
    assert stack.request(same).replayed
    assert len(stack.calls) == 1


def test_01_an_escaped_quote_is_part_of_the_key(stack: Stack, store: eo.Store) -> None:
    stack.guard(store)
    stack.request(r'"a\"b"')
    stack.request('"ab"')
    assert len(stack.calls) == 2
    assert store.get("http", record_key("alice", "POST", "/charges", 'a"b')) is not None


UNREADABLE = [
    "", '""', '"', '"k', 'k"', '"a" "b"', '"a", "b"', "a, b", "a b", ":aGk=:", "?1", '("a")', '%"k"', "@1659578233",
    '"caf\xe9"', '"a\\b"', '"\x1b[2J"', '"a\tb"', "k;", "k=v", "<k>", '"a";=', "\x00", '"a\x00b"',
]  # fmt: skip


@pytest.mark.parametrize("sent", UNREADABLE)
def test_02_what_cannot_be_read_is_refused_and_never_run_unprotected(stack: Stack, store: eo.Store, sent: str) -> None:
    stack.guard(store)
    refused = stack.request(sent)
    assert (refused.status, refused.code) == (400, "invalid-key")
    assert (stack.calls, store.list().records) == ([], [])


def test_02_a_repeated_header_is_refused_though_both_say_the_same(stack: Stack, store: eo.Store) -> None:
    stack.guard(store)
    refused = stack.request("k", ("Idempotency-Key", "k"))
    assert (refused.status, refused.code, stack.calls) == (400, "invalid-key", [])


def test_03_a_key_has_1_to_255_characters(stack: Stack, store: eo.Store) -> None:
    stack.guard(store)
    assert stack.request("k" * 255).status == 201
    assert stack.request('"' + '\\"' * 255 + '"').status == 201
    for long in ("k" * 256, '"' + "k" * 256 + '"', "k" * 100_000):
        assert (stack.request(long).status, stack.request(long).code) == (400, "key-too-long")


def test_03_the_limit_is_a_setting(stack: Stack, store: eo.Store) -> None:
    stack.guard(store, Route(max_key=300))
    assert stack.request("k" * 300).status == 201
    assert stack.request("k" * 301).status == 400


def test_04_a_missing_key_is_refused_where_one_is_required_with_a_link_to_the_docs(
    stack: Stack, store: eo.Store
) -> None:
    stack.guard(store, Route(required=True), docs="https://shop.example/docs/idempotency")
    refused = stack.request(None)
    assert (refused.status, refused["content-type"]) == (400, "application/problem+json")
    assert refused["link"] == '<https://shop.example/docs/idempotency>; rel="describedby"'
    assert refused.json["type"] == "https://shop.example/docs/idempotency#missing-key"
    assert (refused.json["status"], refused.json["code"]) == (400, "missing-key")
    assert stack.calls == []


def test_04_elsewhere_requests_without_a_key_each_run(stack: Stack, store: eo.Store) -> None:
    """fastapi-idempotency merged identical POSTs that had no key."""
    stack.guard(store)
    assert [stack.request(None).body for _ in range(2)] == [b"receipt 1", b"receipt 2"]
    assert store.list().records == []


@pytest.mark.parametrize(("method", "guarded"), [("POST", True), ("PATCH", True), ("PUT", False), ("DELETE", False)])
def test_05_post_and_patch_are_guarded(stack: Stack, store: eo.Store, method: str, guarded: bool) -> None:
    stack.guard(store)
    again = [stack.request(method=method) for _ in range(2)][1]
    assert (again.replayed, len(stack.calls)) == (guarded, 1 if guarded else 2)


def test_05_put_and_delete_by_choice(stack: Stack, store: eo.Store) -> None:
    stack.guard(store, Route(methods=("PUT", "DELETE")))
    for method in ("PUT", "DELETE"):
        assert [stack.request(method=method).replayed for _ in range(2)] == [False, True]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_05_what_changes_nothing_passes_through_with_any_key(stack: Stack, store: eo.Store, method: str) -> None:
    stack.guard(store, Route(required=True))
    assert [stack.request('"broken', method=method).status for _ in range(2)] == [201, 201]
    with pytest.raises(eo.ConfigurationError):
        stack.guard(store, Route(methods=("POST", method)))


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_05_websockets_and_lifespan_pass_through(store: eo.Store, kind: str) -> None:
    seen: list[Any] = []

    async def app(*about: Any) -> None:
        seen.extend(about)

    scope, receive, send = {"type": kind, "headers": [(b"idempotency-key", b"k")]}, object(), object()
    await asgi.IdempotencyMiddleware(app, store, principal=eo.GLOBAL)(scope, receive, send)  # type: ignore[arg-type]
    assert [id(each) for each in seen] == [id(scope), id(receive), id(send)]


# -- identity


def test_06_one_key_of_two_callers_two_methods_or_two_paths_is_two_operations(stack: Stack, store: eo.Store) -> None:
    """F24, F63: no caller ever sees another's response."""
    stack.guard(store)
    bodies = {
        stack.request("k", user, method=method, path=path).body
        for user in (ALICE, BOB)
        for method in ("POST", "PATCH")
        for path in ("/charges", "/refunds")
    }
    assert (len(bodies), len(stack.calls)) == (8, 8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "POST", "/c", "k"), ("a", "POST", "/bc", "k")),
        (("a", "POST", "/b", "ck"), ("a", "POST", "/bc", "k")),
        (("a", "POST", "/4:b", "k"), ("a", "POST", "/", "4:bk")),
        (("1", "POST", "/", "1:k"), ("11", "POST", "/", ":k")),
    ],
)
def test_06_no_two_requests_share_a_record_by_the_way_they_are_joined(
    one: tuple[str, str, str, str], other: tuple[str, str, str, str]
) -> None:
    """F23: length-prefixed."""
    assert record_key(*one) != record_key(*other)


@pytest.mark.parametrize("middleware", [asgi.IdempotencyMiddleware, wsgi.IdempotencyMiddleware])
def test_06_the_principal_is_mandatory_or_the_word_global(middleware: Any, store: eo.Store) -> None:
    with pytest.raises(TypeError, match="principal"):
        middleware(lambda: None, store)
    for wrong in (None, "alice", "", 7):
        with pytest.raises(eo.ConfigurationError, match="GLOBAL"):
            middleware(lambda: None, store, principal=wrong)


def test_06_global_is_one_namespace_for_all_callers(stack: Stack, store: eo.Store) -> None:
    stack.guard(store, principal=eo.GLOBAL)
    assert [stack.request("k", user).replayed for user in (ALICE, BOB)] == [False, True]


def test_06_neither_the_token_nor_the_address_is_part_of_the_identity(stack: Stack, store: eo.Store) -> None:
    """A token is refreshed and an address changes between two tries of one request."""
    stack.guard(store)
    stack.request("k", ("Authorization", "Bearer one"), ("X-Forwarded-For", "192.0.2.7"))
    again = stack.request("k", ("Authorization", "Bearer two"), ("X-Forwarded-For", "198.51.100.9"))
    assert again.replayed


@pytest.mark.parametrize("nobody", [None, "", (), ("acme", None), "a\0b"])
def test_06_a_request_of_nobody_is_refused(stack: Stack, store: eo.Store, nobody: Any) -> None:
    stack.guard(store, principal=lambda request: nobody)
    refused = stack.request()
    assert (refused.status, refused.code, stack.calls) == (401, "missing-principal", [])


def test_06_a_principal_may_be_a_number_or_a_tuple(stack: Stack, store: eo.Store) -> None:
    principals: list[Any] = [7, 8, ("acme", 7), ("acme", 8)]
    for principal in principals * 2:
        stack.guard(store, principal=lambda request, principal=principal: principal)
        stack.request()
    assert len(stack.calls) == 4


def test_07_authentication_and_rate_limits_come_before_the_lookup(
    stack: Stack, store: eo.Store, events: list[Any]
) -> None:
    """A caller who is refused outside of the middleware learns nothing about the keys inside."""
    if isinstance(stack, Asgi):

        def outside(app: Any) -> Any:
            async def limited(scope: Any, receive: Any, send: Any) -> None:
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body"})

            return limited

    else:

        def outside(app: Any) -> Any:
            def limited(environ: Any, start_response: Any) -> list[bytes]:
                start_response("401 Unauthorized", [])
                return []

            return limited

    stack.guard(store)
    stack.request()
    events.clear()
    stack.outside = outside
    stack.guard(store)
    assert stack.request().status == 401
    assert events == []


@pytest.mark.parametrize("changed", [{"body": b'{"amount": 2}'}, {"query": "a=2"}])
def test_08_another_request_under_the_key_is_refused_and_sees_nothing(
    stack: Stack, store: eo.Store, changed: dict[str, Any]
) -> None:
    """F21."""
    stack.guard(store)
    first = stack.request(body=b'{"amount": 1}', query="a=1")
    refused = stack.request(**{"body": b'{"amount": 1}', "query": "a=1", **changed})
    assert (refused.status, refused.code, len(stack.calls)) == (422, "payload-mismatch", 1)
    assert first.body not in refused.body


def test_08_the_fingerprint_is_in_the_record_with_its_version_and_not_in_the_key(stack: Stack, store: eo.Store) -> None:
    stack.guard(store)
    stack.request()
    record = only(store)
    assert record.key == record_key("alice", "POST", "/charges", "k")
    assert record.fingerprint is not None
    assert (len(record.fingerprint), record.fingerprint[:1]) == (33, b"\x81")


def test_08_headers_and_the_way_a_body_is_cut_are_left_out(stack: Stack, store: eo.Store) -> None:
    stack.guard(store)
    stack.request("k", ("User-Agent", "one"), body=b'{"amount": 1}')
    assert stack.request("k", ("User-Agent", "two"), ("Traceparent", "00-1"), body=b'{"amount": 1}').replayed
    assert stack.request(body=[b'{"am', b"", b'ount": 1}']).replayed


def test_08_the_application_reads_the_body_as_it_came(stack: Stack, store: eo.Store) -> None:
    """asgi-idempotency-header cut a body of several parts."""
    parts = [b"\x00\xff" * 40_000, b"", b"middle", b"\r\n" * 40_000]
    stack.guard(store)
    assert stack.request(body=parts).status == 201
    assert stack.calls[0].body == b"".join(parts)


@pytest.mark.parametrize("spooled", [b"s" * 2_000_000, [b"s" * 500_000] * 4])
def test_08_a_large_body_is_spooled_and_given_to_the_application(
    stack: Stack, store: eo.Store, spooled: bytes | list[bytes]
) -> None:
    stack.guard(store, Route(max_body=3_000_000))
    assert stack.request(body=spooled).status == 201
    assert stack.request(body=spooled).replayed
    assert len(stack.calls[0].body) == 2_000_000


@pytest.mark.parametrize("body", [b"x" * 1001, [b"x" * 500, b"x" * 501], [b"", b"x" * 1001]])
def test_08_a_body_over_the_cap_is_refused_never_passed_unprotected(
    stack: Stack, store: eo.Store, body: bytes | list[bytes]
) -> None:
    stack.guard(store, Route(max_body=1000))
    refused = stack.request(body=body)
    assert (refused.status, refused.code, stack.calls) == (413, "payload-too-large", [])
    assert store.list().records == []


@pytest.mark.parametrize("body", [b"x" * 1000, [b"x" * 500, b"x" * 500], [b"x" * 1000, b""]])
def test_08_a_body_at_the_cap_is_guarded(stack: Stack, store: eo.Store, body: bytes | list[bytes]) -> None:
    stack.guard(store, Route(max_body=1000))
    assert [stack.request(body=body).status for _ in range(2)] == [201, 201]
    assert len(stack.calls) == 1


# -- claim


def at_once(stack: Stack, first: Callable[[], Reply], meanwhile: Callable[[], Any]) -> tuple[Reply, Any]:
    """``meanwhile`` is called while the handler of ``first`` runs."""
    begun, over = threading.Event(), threading.Event()
    handler = stack.handler

    def blocking(call: Call) -> Answer:
        begun.set()
        assert over.wait(30)
        return handler(call)

    stack.handler = blocking
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(first()))
    thread.start()
    assert begun.wait(30)
    try:
        seen = meanwhile()
    finally:
        stack.handler = handler
        over.set()
        thread.join(30)
    return replies[0], seen


def test_09_a_claim_whose_reply_is_lost_recognises_itself(stack: Stack, clock: ManualClock) -> None:
    """F68: the insert was applied, its answer never came; asked again, it is this request's own."""
    from effectonce.contracts import ConnectionLost
    from tests.harness.faulty_store import GroupedBackend

    backend = GroupedBackend(clock)
    failed: list[Any] = []

    def once_lost(op: Any) -> Exception | None:
        if not failed:
            failed.append(op)
            return ConnectionLost("the reply was lost")
        return None

    backend.after = once_lost
    stack.guard(eo.Store(backend, sweep_every=None))
    assert (stack.request().status, len(stack.calls), len(failed)) == (201, 1, 1)


def test_10_beside_the_first_a_request_gets_409_with_retry_after(stack: Stack, store: eo.Store) -> None:
    stack.guard(store)
    first, beside = at_once(stack, stack.request, stack.request)
    assert (beside.status, beside.code, beside["retry-after"]) == (409, "in-progress", "1")
    assert (first.status, len(stack.calls), stack.request().replayed) == (201, 1, True)


def test_10_with_wait_it_gets_the_response_instead(stack: Stack) -> None:
    store = eo.connect("memory://")
    stack.guard(store, Route(wait="30s"))
    replies: list[Reply] = []

    def beside() -> None:
        waiting = threading.Thread(target=lambda: replies.append(stack.request()))
        waiting.start()
        while not store.runtime.waiters.waiting:
            waiting.join(0.001)
        threads.append(waiting)

    threads: list[threading.Thread] = []
    first, _ = at_once(stack, stack.request, beside)
    threads[0].join(30)
    assert (replies[0].body, replies[0].replayed, len(stack.calls)) == (first.body, True, 1)


def test_10_a_wait_is_bounded(stack: Stack) -> None:
    stack.guard(eo.connect("memory://"), Route(wait="50ms"))
    _, beside = at_once(stack, stack.request, stack.request)
    assert (beside.status, beside.code) == (409, "in-progress")


def test_11_the_lease_is_renewed_while_the_handler_runs(stack: Stack, store: eo.Store, clock: ManualClock) -> None:
    stack.guard(store, Route(lease="10s", on_lapse="rerun"))

    def long() -> Reply:
        for _ in range(6):
            clock.advance("5s")
            store.runtime.heartbeat.beat()
        return stack.request()

    first, beside = at_once(stack, stack.request, long)
    assert (first.status, beside.code, len(stack.calls)) == (201, "in-progress", 1)


def test_11_completion_is_fenced(stack: Stack, store: eo.Store, clock: ManualClock) -> None:
    """F08: a run that lost its lease neither records its response nor sends it as if it had."""
    stack.guard(store, Route(lease="10s", on_lapse="rerun"))
    handler = stack.handler

    def take_over() -> Reply:
        stack.handler = handler
        clock.advance("11s")
        return stack.request()

    late, successor = at_once(stack, stack.request, take_over)
    assert (late.status, late.code) == (409, "lease-lost")
    assert (successor.status, stack.request().body) == (201, successor.body)


def test_11_release_is_fenced(stack: Stack, store: eo.Store, clock: ManualClock) -> None:
    """F09: a late release does not delete its successor's record."""
    stack.handler = lambda call: Answer(429 if len(stack.calls) == 1 else 201, b"later")
    stack.guard(store, Route(lease="10s", on_lapse="rerun"))
    handler = stack.handler

    def take_over() -> Reply:
        stack.handler = lambda call: Answer(201, b"successor")
        clock.advance("11s")
        reply = stack.request()
        stack.handler = handler
        return reply

    stack.calls.clear()
    _, successor = at_once(stack, stack.request, take_over)
    assert (successor.body, stack.request().body) == (b"successor", b"successor")


class Killed(BaseException):
    """The process, in a test that has only this one: nothing after it runs."""


def killed(stack: Stack, store: eo.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose handler has its effect, and whose process then dies without a word."""

    def handler(call: Call) -> Answer:
        raise Killed

    async def silent(*_: Any) -> None: ...

    before, stack.handler = stack.handler, handler
    with monkeypatch.context() as patch:
        patch.setattr("effectonce.http.response_recording.abort", silent)
        with pytest.raises(Killed):
            stack.request()
    stack.handler = before


def test_12_a_lease_that_ended_is_in_doubt_and_not_rerun(
    stack: Stack, store: eo.Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.guard(store)
    killed(stack, store, monkeypatch)
    assert stack.request().code == "in-progress"
    clock.advance("31s")
    doubted = stack.request()
    assert (doubted.status, doubted.code, doubted["retry-after"]) == (409, "in-doubt", None)
    assert (len(stack.calls), only(store).state) == (1, "in_doubt")


def test_12_an_operator_decides_what_was_in_doubt(
    stack: Stack, store: eo.Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.guard(store)
    identity = ("http", record_key("alice", "POST", "/charges", "k"))
    killed(stack, store, monkeypatch)
    clock.advance("31s")
    stack.request()
    store.resolve(*identity, "done", result=Response(201, [("content-type", "text/plain")], b"by hand"))
    replayed = stack.request()
    assert (replayed.status, replayed.body, replayed.replayed, len(stack.calls)) == (201, b"by hand", True, 1)
    store.forget(*identity)
    killed(stack, store, monkeypatch)
    clock.advance("31s")
    stack.request()
    store.resolve(*identity, "abandon")
    assert (stack.request().status, stack.request().code) == (409, "permanent-failure")


@pytest.mark.parametrize("choice", ["rerun", "resume"])
def test_12_rerun_and_resume_run_again_and_know_it(
    stack: Stack, store: eo.Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, choice: Any
) -> None:
    stack.guard(store, Route(on_lapse=choice))
    lapsed: list[tuple[bool, int]] = []

    def handler(call: Call) -> Answer:
        lapsed.append((eo.current().lapsed, eo.current().attempt))
        return Answer(201)

    killed(stack, store, monkeypatch)
    stack.handler = handler
    clock.advance("31s")
    assert (stack.request().status, lapsed) == (201, [(True, 2)])


# -- response


@pytest.mark.parametrize("status", [200, 201, 202, 204, 301, 303, 307, 400, 402, 403, 404, 409, 410, 422, 451])
def test_13_success_redirects_and_deterministic_refusals_are_stored(stack: Stack, store: eo.Store, status: int) -> None:
    stack.handler = lambda call: Answer(status, b"" if status == 204 else b"body")
    stack.guard(store)
    first, again = stack.request(), stack.request()
    assert (again.status, again.body, again.replayed, len(stack.calls)) == (status, first.body, True, 1)


@pytest.mark.parametrize("status", [401, 408, 425, 429])
def test_13_what_says_not_now_is_never_stored(stack: Stack, store: eo.Store, status: int) -> None:
    """asgi-idempotency-header replayed a 401 to a caller who had logged in by then."""
    stack.handler = lambda call: Answer(status if len(stack.calls) == 1 else 201)
    stack.guard(store)
    assert [stack.request().status for _ in range(3)] == [status, 201, 201]
    assert len(stack.calls) == 2


def test_13_the_middlewares_own_answers_are_never_stored(stack: Stack, clock: ManualClock) -> None:
    backend = FaultyBackend(clock)
    store = eo.Store(backend)
    stack.guard(store, Route(max_body=10))
    backend.before = down
    statuses = [stack.request().status]
    backend.before = fine
    statuses += [
        stack.request('"').status,
        stack.request(body=b"x" * 11).status,
        stack.request("k", ("X-User", "")).status,
    ]
    assert statuses == [503, 400, 413, 401]
    assert store.list().records == []
    assert stack.request().status == 201


def outcomes(stack: Stack, store: eo.Store, on_error: Any) -> list[tuple[int | str, bool, str | None]]:
    stack.guard(store, Route(on_error=on_error))
    seen: list[tuple[int | str, bool, str | None]] = []
    for _ in range(2):
        try:
            reply = stack.request()
            seen.append((reply.status, reply.replayed, reply.code))
        except ZeroDivisionError:
            seen.append(("raised", False, None))
    return seen


@pytest.mark.parametrize(
    ("on_error", "again"),
    [("doubt", (409, False, "in-doubt")), ("replay", (503, True, None)), ("release", (503, False, None))],
)
def test_14_a_5xx_is_in_doubt_or_replayed_or_rerun_by_the_routes_choice(
    stack: Stack, store: eo.Store, on_error: str, again: Any
) -> None:
    stack.handler = lambda call: Answer(503, b"sorry")
    assert outcomes(stack, store, on_error) == [(503, False, None), again]
    assert len(stack.calls) == (2 if on_error == "release" else 1)


@pytest.mark.parametrize(
    ("on_error", "again"),
    [
        ("doubt", (409, False, "in-doubt")),
        ("replay", (500, True, "attempt-failed")),
        ("release", ("raised", False, None)),
    ],
)
@pytest.mark.parametrize("when", ["at once", "after headers"])
def test_14_an_exception_likewise_also_after_the_headers_were_sent(
    stack: Stack, store: eo.Store, on_error: str, again: Any, when: str
) -> None:
    def handler(call: Call) -> Answer:
        if when == "at once":
            raise ZeroDivisionError
        return Answer(200, [b"half", b" of it"], then=ZeroDivisionError())

    stack.handler = handler
    assert outcomes(stack, store, on_error) == [("raised", False, None), again]


NOTHING: list[bytes | list[bytes]] = [b"", [], [b""]]
BODIES: list[bytes | list[bytes]] = [
    b"\x00\xff\xfe", b"not json", "ünïcode".encode(), b"x" * 200_000, [b"a"], [b"a", b"", b"b"], [b"x" * 1000] * 200,
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body"),
    [*((200, body) for body in [*NOTHING, *BODIES]), *((204, body) for body in NOTHING)],
    ids=lambda given: repr(given)[:24],
)
def test_15_replays_are_byte_exact(stack: Stack, store: eo.Store, status: int, body: Any) -> None:
    """A falsy body is a response too: it is replayed, not run again."""
    whole = body if isinstance(body, bytes) else b"".join(body)
    stack.handler = lambda call: Answer(status, body, [("Content-Type", "application/octet-stream")])
    stack.guard(store)
    first, again = stack.request(), stack.request()
    assert first.body == again.body == whole
    assert (again.status, again.replayed, again["content-type"]) == (status, True, "application/octet-stream")
    assert again["content-length"] == (None if status == 204 else str(len(whole)))
    assert len(stack.calls) == 1


@pytest.mark.parametrize("body", [b"x" * 1001, [b"x" * 600, b"x" * 401]])
def test_16_over_the_response_cap_it_is_done_and_a_retry_is_told_so(stack: Stack, store: eo.Store, body: Any) -> None:
    """F18: never a release, never a rerun."""
    stack.handler = lambda call: Answer(200, body)
    stack.guard(store, Route(max_response=1000))
    assert len(stack.request().body) == 1001
    again = stack.request()
    assert (again.status, again.code, again.replayed) == (409, "result-not-stored", True)
    assert again["retry-after"] is None
    assert (len(stack.calls), only(store).state, only(store).result) == (1, "done", None)


def test_16_at_the_cap_it_is_stored(stack: Stack, store: eo.Store) -> None:
    stack.handler = lambda call: Answer(200, [b"x" * 600, b"x" * 400])
    stack.guard(store, Route(max_response=1000))
    assert stack.request().body == stack.request().body
    assert len(stack.calls) == 1


def test_17_only_listed_headers_are_replayed_and_the_response_all_the_same(stack: Stack, store: eo.Store) -> None:
    """F63: no session, no challenge, no connection of another exchange."""
    dropped = [(name.title(), "x") for name in sorted(NEVER_STORED_HEADERS - {"content-length", "transfer-encoding"})]
    kept = [("Content-Type", "application/json"), ("Location", "/charges/7"), ("ETag", '"v1"'), ("Vary", "Accept")]
    stack.handler = lambda call: Answer(201, b"{}", [*dropped, *kept, ("X-Trace", "1"), ("X-Cost", "2")])
    stack.guard(store, Route(keep_headers=("X-Cost",)))
    first, again = stack.request(), stack.request()
    assert {name.lower() for name, _ in first.headers} >= {name.lower() for name, _ in [*dropped, *kept]}
    assert {name.lower(): value for name, value in again.headers} == {
        **{name.lower(): value for name, value in kept}, "x-cost": "2", "content-length": "2",
        "idempotent-replayed": "true", "idempotency-key-retention": "1296000",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["Set-Cookie", "www-authenticate", "Connection", "Date"])
def test_17_nobody_can_ask_for_a_header_that_must_not_be_replayed(stack: Stack, store: eo.Store, name: str) -> None:
    with pytest.raises(eo.ConfigurationError, match=name.lower()):
        stack.guard(store, Route(keep_headers=(name,)))


def gzipped(app: Any) -> Any:
    """Compression for WSGI, as GZipMiddleware is for ASGI."""

    def compressing(environ: Any, start_response: Any) -> Iterator[bytes]:
        head: list[Any] = []
        chunks = app(environ, lambda status, headers, exc_info=None: head.append((status, headers)))
        body = b"".join(chunks)
        if hasattr(chunks, "close"):
            chunks.close()
        status, headers = head[-1]
        headers = [*((n, v) for n, v in headers if n.lower() != "content-length"), ("Vary", "Accept-Encoding")]
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            body, headers = gzip.compress(body), [*headers, ("Content-Encoding", "gzip")]
        start_response(status, headers)
        yield body

    return compressing


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("first_accepts", ["gzip", None])
@pytest.mark.parametrize("retry_accepts", ["gzip", None])
def test_18_compression_may_stand_on_either_side(
    stack: Stack, store: eo.Store, where: str, first_accepts: str | None, retry_accepts: str | None
) -> None:
    """Whatever the first client read, a retrying client can read what it gets."""
    setattr(stack, where, (lambda app: GZipMiddleware(app, minimum_size=10)) if isinstance(stack, Asgi) else gzipped)
    text = b"receipt " * 100
    stack.handler = lambda call: Answer(200, text, [("Content-Type", "text/plain")])
    stack.guard(store)
    for accepts in (first_accepts, retry_accepts):
        reply = stack.request("k", *([("Accept-Encoding", accepts)] if accepts else []))
        encoded = reply["content-encoding"]
        assert encoded in (None, accepts)
        assert (gzip.decompress(reply.body) if encoded else reply.body) == text
        if where == "outside":
            assert (encoded, reply["vary"]) == (accepts, "Accept-Encoding")
    assert (reply.replayed, len(stack.calls)) == (True, 1)


@pytest.mark.parametrize("status", [201, 404, 500])
def test_19_every_replay_says_so_and_nothing_else_does(stack: Stack, store: eo.Store, status: int) -> None:
    stack.handler = lambda call: Answer(status)
    stack.guard(store, Route(on_error="replay"))
    assert [stack.request().replayed for _ in range(3)] == [False, True, True]
    assert not stack.request(body=b"other").replayed


def test_20_the_record_is_written_before_the_last_bytes_leave(stack: Stack, clock: ManualClock) -> None:
    """When the client has read it all, the record is done; whatever it could take for the end waits for that."""
    for length in (None, "8"):
        backend = FaultyBackend(clock)
        order: list[Any] = []
        backend.after = lambda op: order.append(getattr(op, "state", "claim"))  # noqa: B023
        headers = [("Content-Length", length)] if length else []

        def chunks(order: list[Any] = order) -> Iterator[bytes]:
            for chunk in (b"one ", b"two ", b""):
                order.append(chunk)
                yield chunk
            order.append("end")

        stack.handler = lambda call: Answer(200, chunks(), headers)  # noqa: B023
        stack.guard(eo.Store(backend, sweep_every=None))
        assert stack.request().body == b"one two "
        assert order == ["claim", b"one ", b"two ", b"", "end", "done"]


@pytest.mark.parametrize("length", [None, "7"])
def test_20_an_unrecorded_response_is_not_sent_and_is_in_doubt_not_free(
    stack: Stack, clock: ManualClock, length: str | None
) -> None:
    """F36: the effect has happened, and the store went away before that was recorded."""
    backend = FaultyBackend(clock)
    store = eo.Store(backend, sweep_every=None)
    headers = [("Content-Length", length)] if length else []
    stack.handler = lambda call: Answer(200, b"receipt", headers)
    stack.guard(store)
    backend.before = lambda op: down(op) if getattr(op, "state", "") == "done" else None
    refused = stack.request()
    assert (refused.status, refused.code, refused["retry-after"]) == (503, "store-unavailable", "1")
    backend.before = fine
    assert only(store).state == "claimed"
    clock.advance("31s")
    assert (stack.request().code, only(store).state, len(stack.calls)) == ("in-doubt", "in_doubt", 1)


def test_20_a_stream_that_cannot_be_recorded_is_broken_off(stack: Stack, clock: ManualClock) -> None:
    """Its first chunks have left, so its end is what is missing: no client takes it for complete."""
    backend = FaultyBackend(clock)
    stack.handler = lambda call: Answer(200, [b"one", b"two"])
    stack.guard(eo.Store(backend, sweep_every=None))
    backend.before = lambda op: down(op) if getattr(op, "state", "") == "done" else None
    with pytest.raises(eo.StoreUnavailable):
        stack.request()


# -- operations


def test_21_while_the_store_is_down_nothing_runs(stack: Stack, clock: ManualClock) -> None:
    """F36: 503, with the time to come back."""
    backend = FaultyBackend(clock)
    backend.before = down
    stack.guard(eo.Store(backend))
    refused = stack.request()
    assert (refused.status, refused.code, refused["retry-after"]) == (503, "store-unavailable", "1")
    assert stack.calls == []


def test_21_running_unprotected_is_a_choice_of_the_route(stack: Stack, clock: ManualClock, events: list[Any]) -> None:
    backend = FaultyBackend(clock)
    backend.before = down
    stack.guard(eo.Store(backend, hooks=[events.append]), routes={"/logs": Route(on_store_error="run")})
    assert [stack.request(path=path).status for path in ("/logs", "/charges", "/logs")] == [201, 503, 201]
    assert [event.kind for event in events] == ["unprotected", "unprotected"]
    assert stack.request(path="/logs")["idempotency-key-retention"] is None


@pytest.mark.parametrize("error", [ValueError("a bug"), eo.CorruptRecord("a row"), eo.SchemaMissing("no table")])
def test_21_whatever_else_the_store_does_is_a_503_of_ours_and_never_a_500(
    stack: Stack, clock: ManualClock, error: Exception
) -> None:
    backend = FaultyBackend(clock)
    backend.before = lambda op: error
    stack.guard(eo.Store(backend))
    assert (stack.request().status, stack.request()["retry-after"], stack.calls) == (503, "1", [])


def test_22_the_expiry_policy_is_published(stack: Stack, store: eo.Store, clock: ManualClock) -> None:
    stack.guard(store, Route(retention="30d"))
    for _ in range(2):
        assert stack.request()["idempotency-key-retention"] == str(30 * 86_400)
    clock.advance("29d")
    assert stack.request().replayed
    clock.advance("2d")
    assert not stack.request().replayed


def test_23_the_reaper_never_deletes_an_unfinished_record(stack: Stack, store: eo.Store, clock: ManualClock) -> None:
    """F26."""
    stack.guard(store, Route(retention="1s"))

    def years_later() -> Any:
        clock.advance(f"{3 * 365}d")
        return store.purge(), stack.request().code

    _, (swept, code) = at_once(stack, stack.request, years_later)
    assert (swept.deleted, swept.lapsed, code) == (0, 1, "in-doubt")


SECRET = "customer-lovelace-\x1b[31m<script>"


def test_23_keys_are_hashed_in_logs(
    stack: Stack, store: eo.Store, clock: ManualClock, events: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """F65: neither the key nor its control characters get into logs, events or problems."""
    caplog.set_level(logging.DEBUG)
    backend = FaultyBackend(clock)
    stack.guard(eo.Store(backend, hooks=[events.append]), Route(max_response=1))
    key = '"customer-lovelace-<script>"'
    replies = [stack.request(key, path="/c\x1b[31m\r\n") for _ in range(2)]
    replies += [stack.request(key, path="/c\x1b[31m\r\n", body=b"other"), stack.request(f'"{SECRET}"')]
    backend.before = down
    replies.append(stack.request(key, path="/c\x1b[31m\r\n"))
    text = caplog.text + repr(events) + repr([(reply.headers, reply.body) for reply in replies])
    assert "lovelace" not in text
    assert "script" not in text
    assert "\x1b" not in text
    assert not any("\r" in record.getMessage() or "\n" in record.getMessage() for record in caplog.records)


# -- settings


def test_each_route_has_its_own_settings_and_the_first_pattern_counts(stack: Stack, store: eo.Store) -> None:
    stack.guard(
        store,
        Route(),
        routes={
            "/orders/{id}/pay": Route(required=True),
            "/orders/*": None,
            "/status": Route(methods=("PUT",)),
        },
    )
    assert stack.request(None, path="/orders/7/pay").status == 400
    assert stack.request(None, path="/orders/7/8/pay").status == 201
    assert [stack.request(path="/orders/7").replayed for _ in range(2)] == [False, False]
    assert [stack.request(path="/status", method="PUT").replayed for _ in range(2)] == [False, True]
    assert [stack.request(path="/status", method="POST").replayed for _ in range(2)] == [False, False]
    assert [stack.request(path="/else").replayed for _ in range(2)] == [False, True]


def test_a_function_may_say_which_route_it_is(stack: Stack, store: eo.Store) -> None:
    money = Route(required=True)
    stack.guard(store, None, routes=lambda method, path: money if path.startswith("/pay") else None)
    assert stack.request(None, path="/pay").status == 400
    assert [stack.request(path="/pay").replayed for _ in range(2)] == [False, True]
    assert [stack.request(path="/else").replayed for _ in range(2)] == [False, False]


def test_two_services_on_one_store_keep_their_keys_apart(stack: Stack, store: eo.Store) -> None:
    """F24."""
    for service in ("shop", "billing", "shop"):
        stack.guard(store, service=service)
        stack.request()
    assert len(stack.calls) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"on_error": "retry"}, "on_error"),
        ({"on_lapse": "retry"}, "on_lapse"),
        ({"on_store_error": "ignore"}, "on_store_error"),
        ({"max_body": 0}, "max_body"),
        ({"max_response": "1 MB"}, "max_response"),
        ({"lease": "1ms"}, "lease"),
        ({"methods": "POST"}, "methods"),
        ({"keep_headers": ["x"]}, "keep_headers"),
    ],
)
def test_a_wrong_setting_is_told_at_once(stack: Stack, store: eo.Store, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(eo.ConfigurationError, match=said):
        stack.guard(store, routes={"/charges": Route(**wrong)})


def test_a_wrong_pattern_or_address_is_told_at_once(stack: Stack, store: eo.Store) -> None:
    wrong: list[dict[str, Any]] = [{"routes": {"charges": Route()}}, {"routes": 7}, {"docs": 'x"><'}, {"service": ""}]
    for options in wrong:
        with pytest.raises(eo.ConfigurationError):
            stack.guard(store, **options)


def test_the_handler_knows_its_run(stack: Stack, store: eo.Store) -> None:
    def handler(call: Call) -> Answer:
        run = eo.current()
        return Answer(200, f"{run.scope} {run.attempt} {run.provider_key('stripe')}".encode())

    stack.handler = handler
    stack.guard(store)
    assert stack.request().body == stack.request().body
    with pytest.raises(eo.ConfigurationError):
        eo.current()
    assert store.runtime.leased_runs == set()


def test_a_private_store_shows_neither_key_nor_response(stack: Stack) -> None:
    """F62."""
    backend = MemoryStoreBackend()
    store = eo.Store(backend, private="0123456789abcdef0123")
    stack.handler = lambda call: Answer(200, b"account of lovelace")
    stack.guard(store)
    assert [stack.request().body for _ in range(2)] == [b"account of lovelace"] * 2
    assert len(stack.calls) == 1
    row = repr(only(store))
    assert "lovelace" not in row
    assert "/charges" not in row


def test_the_middleware_is_an_async_callable_to_servers() -> None:
    """uvicorn takes an application for ASGI 2 if its ``__call__`` is not a coroutine function."""
    assert inspect.iscoroutinefunction(asgi.IdempotencyMiddleware.__call__)

"""The protocol by itself: the header, what is kept and replayed, and the status of every error."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import effectonce as eo
from effectonce import errors
from effectonce.core.codec import Unstorable
from effectonce.http import protocol
from effectonce.http.problems import error_of_problem, problem
from effectonce.http.protocol import Response, ResponseCodec
from effectonce.http.routes import Route, RouteTable, make_route_plan

# -- the header


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b"abc", "abc"),
        (b'"abc"', "abc"),
        (b' \t"abc" ', "abc"),
        (b'"a\\"b\\\\c"', 'a"b\\c'),
        (b"8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        (b'"abc";v=1', "abc"),
        (b'"7"', "7"),
        (b"7a", "7a"),
        (b"a" * 255, "a" * 255),
        (b'"' + b"a" * 255 + b'"', "a" * 255),
        (b'"' + b'\\"' * 255 + b'"', '"' * 255),
    ],
)
def test_a_key_is_a_string_or_a_bare_token(raw: bytes, key: str) -> None:
    assert protocol.parse_key([raw]) == key


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([b"a", b"a"], eo.InvalidKey),
        ([b""], eo.InvalidKey),
        ([b'""'], eo.InvalidKey),
        ([b'"abc'], eo.InvalidKey),
        ([b"a b"], eo.InvalidKey),
        ([b"(a)"], eo.InvalidKey),
        ([b":YWJj:"], eo.InvalidKey),
        ([b"7"], eo.InvalidKey),  # a number, which the draft's header is not
        ([b"-7.25"], eo.InvalidKey),
        ([b"20240115104207"], eo.InvalidKey),
        ([b"a" * 256], eo.KeyTooLong),
        ([b'"' + b"a" * 256 + b'"'], eo.KeyTooLong),
        ([b'"' + b'\\"' * 256 + b'"'], eo.KeyTooLong),
        ([b'"' + b"\\" * 100_000], eo.KeyTooLong),
    ],
)
def test_what_is_no_key_is_never_taken_for_none(values: list[bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        protocol.parse_key(values)


def test_a_limit_of_ones_own() -> None:
    assert protocol.parse_key([b"abcd"], 4) == "abcd"
    with pytest.raises(eo.KeyTooLong, match="5 characters, more than the 4"):
        protocol.parse_key([b"abcde"], 4)
    assert protocol.parse_key([b'"' + b"a" * 4 + b'"' + b" " * 66], 4) == "aaaa"
    with pytest.raises(eo.KeyTooLong, match="over 4 characters"):
        protocol.parse_key([b'"aaaa";' + b"x" * 66], 4)


def test_without_the_parser_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol.load_parser.cache_clear()
    monkeypatch.setitem(sys.modules, "http_sf", None)
    with pytest.raises(eo.MissingDriver, match=r"effectonce\[http\]"):
        protocol.load_parser()
    monkeypatch.undo()
    protocol.load_parser()


# -- identity


def test_requests_that_differ_in_anything_have_different_records() -> None:
    parts = [
        ("alice", "POST", "/a", "k"),
        ("bob", "POST", "/a", "k"),
        ("alice", "PATCH", "/a", "k"),
        ("alice", "POST", "/b", "k"),
        ("alice", "POST", "/a", "l"),
        ("alic", "ePOST", "/a", "k"),
        ("alice", "POST", "/ak", ""),
        ("ü", "POST", "/ü", "ü"),
        ("ü", "POST", "/", "üü"),
    ]
    keys = {protocol.record_key(*part) for part in parts}
    assert len(keys) == len(parts)
    assert protocol.record_key("alice", "POST", "/a", "k").startswith("POST /a ")
    assert "\ud800" not in protocol.record_key("alice", "POST", "/\udc80", "k"), "a path that is not UTF-8 has one, too"


def test_a_fingerprint_is_of_method_path_query_and_body() -> None:
    def of(method: str, path: bytes, query: bytes, body: bytes) -> bytes:
        state = protocol.fingerprint_state(method, path, query)
        state.update(body)
        return protocol.fingerprint(state)

    different = {of(*each) for each in [
        ("POST", b"/a", b"", b"x"), ("PUT", b"/a", b"", b"x"), ("POST", b"/b", b"", b"x"),
        ("POST", b"/a", b"q", b"x"), ("POST", b"/a", b"", b"y"), ("POST", b"/", b"a", b"x"),
    ]}  # fmt: skip
    assert len(different) == 6
    assert {len(each) for each in different} == {33}
    assert {each[:1] for each in different} == {b"\x81"}


# -- stored responses


def test_a_response_is_stored_up_to_its_cap() -> None:
    codec = ResponseCodec(1000)
    response = Response(201, [("content-type", "text/plain")], b"x" * 1000)
    assert codec.decode(codec.encode(response)) == response
    with pytest.raises(Unstorable, match="max_response=1000"):
        codec.encode(Response(201, [], None))
    large = Response(201, [("x-large", "y" * 65_000)], b"\xff" * 1000)
    assert codec.decode(codec.encode(large)) == large, "there is room for its headers"
    with pytest.raises(Unstorable):
        codec.encode(Response(201, [("x-large", "y" * 70_000)], b"x" * 1000))


@pytest.mark.parametrize(("status", "length"), [(200, "2"), (201, "2"), (204, None), (304, None), (103, None)])
def test_a_replay_is_marked_and_has_its_length(status: int, length: str | None) -> None:
    sent = protocol.replay(Response(status, [("etag", "e")], b"ok"), 60_000_000)
    headers = dict(sent.headers)
    assert headers.pop("content-length", None) == length
    assert headers == {"etag": "e", protocol.RETENTION_HEADER: "60", protocol.REPLAYED_HEADER: "true"}


# -- problems

STATUSES: dict[type[eo.EffectOnceError], int] = {
    eo.MissingKey: 400,
    eo.InvalidKey: 400,
    eo.KeyTooLong: 400,
    eo.MissingPrincipal: 401,
    eo.InProgress: 409,
    eo.Reentered: 409,
    eo.LeaseLost: 409,
    eo.InDoubt: 409,
    eo.ResultNotStored: 409,
    eo.PermanentFailure: 409,
    eo.AttemptsExhausted: 409,
    eo.PayloadTooLarge: 413,
    eo.PayloadMismatch: 422,
    eo.StoreUnavailable: 503,
    eo.CorruptRecord: 503,
    eo.ConfigurationError: 503,
    eo.EffectOnceError: 503,
}


def error_of(kind: type[eo.EffectOnceError], **attributes: Any) -> eo.EffectOnceError:
    error = kind.__new__(kind)
    Exception.__init__(error, "secret text")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize("kind", STATUSES, ids=lambda kind: kind.__name__)
def test_every_error_has_its_status_and_tells_no_secret(kind: type[eo.EffectOnceError]) -> None:
    error = error_of(kind, retry_after=1.0) if issubclass(kind, eo.Retryable) else error_of(kind)
    answer = problem(error, "https://shop/docs")
    assert (answer.status, b"secret" in (answer.body or b"")) == (STATUSES[kind], False)
    headers = dict(answer.headers)
    assert headers["content-type"] == "application/problem+json"
    assert headers["cache-control"] == "no-store"
    assert headers["link"] == '<https://shop/docs>; rel="describedby"'
    assert headers["content-length"] == str(len(answer.body or b""))
    retried = STATUSES[kind] == 503 or kind in (eo.InProgress, eo.Reentered, eo.LeaseLost)
    assert ("retry-after" in headers) is retried
    assert (headers.get(protocol.REPLAYED_HEADER) == "true") is (kind is eo.ResultNotStored)


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.2, "2"), (59.5, "60"), (4000.0, "60")])
def test_a_pause_is_whole_seconds_between_one_and_sixty(seconds: float, header: str) -> None:
    answer = problem(errors.StoreUnavailable("down", seconds))
    assert dict(answer.headers)["retry-after"] == header


def test_of_what_is_in_progress_the_pause_is_always_one_second() -> None:
    assert dict(problem(error_of(eo.InProgress, retry_after=30.0)).headers)["retry-after"] == "1"


@pytest.mark.parametrize(("said", "seconds"), [(None, 1.0), (0.0, 1.0), (7.0, 7.0)])
def test_a_client_hears_when_to_ask_again_and_else_in_a_second(said: float | None, seconds: float) -> None:
    body = problem(eo.InProgress("busy", 20)).body
    assert body is not None
    error = error_of_problem(body, said)
    assert isinstance(error, eo.InProgress)
    assert error.retry_after == seconds


# -- routes


def test_the_defaults_of_a_route() -> None:
    route = make_route_plan(Route(), "shop").route
    assert (route.required, route.on_error, route.max_key) == (False, "doubt", 255)
    assert (route.max_body, route.max_response) == (1024 * 1024, 256 * 1024)
    assert route.methods == ("POST", "PATCH")
    assert route.transient == (401, 408, 425, 429)


@pytest.mark.parametrize("option", ["max_key", "max_body", "max_response"])
@pytest.mark.parametrize("size", [0, -1, True, 1.5, "9"])
def test_a_size_is_a_whole_number_above_zero(option: str, size: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match=option):
        make_route_plan(Route(**{option: size}), "shop")
    assert make_route_plan(Route(**{option: 1}), "shop")


@pytest.mark.parametrize("on_error", ["doubt", "replay", "release"])
@pytest.mark.parametrize("on_lapse", ["doubt", "rerun", "resume"])
def test_the_record_of_a_route_lapses_as_the_route_says(on_error: Any, on_lapse: Any) -> None:
    policy = make_route_plan(Route(on_error=on_error, on_lapse=on_lapse), "shop").policy
    assert (policy.doubt_on_error, policy.doubt_on_lapse) == (on_error == "doubt", on_lapse == "doubt")


def test_the_first_pattern_that_matches_counts() -> None:
    table = RouteTable(
        Route(), {"/files/*": None, "/orders/{id}/pay": Route(required=True), "/orders/*": Route(methods=("PUT",))}, "s"
    )
    assert table.find("POST", "/files/a/b", True) is None
    assert table.find("POST", "/elsewhere", True) is not None
    assert table.find("POST", "/elsewhere", False) is None, "a key is not required there"
    pay = table.find("POST", "/orders/7/pay", False)
    assert pay is not None
    assert pay.route.required
    assert table.find("POST", "/orders/7/8/pay", True) is None, "one segment; and the next pattern guards PUT only"
    assert table.find("PUT", "/orders/7/8/pay", True) is not None
    assert table.find("POST", "/orders//pay", True) is None
    asked = RouteTable(None, lambda method, path: Route() if path == "/a" else None, "s")
    assert asked.find("POST", "/a", True) is not None
    assert asked.find("GET", "/a", True) is None
    assert asked.find("POST", "/b", True) is None
    assert RouteTable(None, {}, "s").find("POST", "/a", True) is None

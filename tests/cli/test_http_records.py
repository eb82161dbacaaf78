"""An HTTP request in doubt: an operator decides it on the command line, and the client's retry gets a true answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.http import ACP, AdCP, record_key
from tests.http.conftest import Answer, Asgi, Call, Stack, Wsgi

from .conftest import Cli

KEY = record_key("alice", "POST", "/charges", "k")


@pytest.fixture
def cli(inline: Cli, tmp_path: Path) -> Cli:
    (tmp_path / "pyproject.toml").write_text('[tool.effectonce]\nstore = "sqlite:///shop.db"\n')
    return inline


@pytest.fixture
def store(cli: Cli) -> Iterator[eo.Store]:
    with eo.connect("sqlite:///shop.db", sweep_every=None) as store:
        yield store


@pytest.fixture(params=[Asgi, Wsgi], ids=["asgi", "wsgi"])
def doubted(request: pytest.FixtureRequest, store: eo.Store) -> Stack:
    """An application whose first request is in doubt: it answered with a 500."""
    stack: Stack = request.param()
    stack.handler = lambda call: Answer(500)
    stack.guard(store)
    assert stack.request().status == 500
    assert stack.request().code == "in-doubt"
    return stack


def resolve(cli: Cli, *options: str) -> Any:
    return cli("records", "resolve", "http", KEY, *options, "--yes")


@pytest.mark.parametrize(
    ("result", "body", "content_type"),
    [
        ({"status": 201, "body": {"paid": 1}}, b'{"paid":1}', "application/json"),
        ({"status": 201, "body": "paid"}, b"paid", "text/plain; charset=utf-8"),
        ({"status": 201, "headers": {"Content-Type": "text/csv"}, "body": "a;b"}, b"a;b", "text/csv"),
        ({"status": 201, "headers": {"Location": "/c/1"}}, b"", None),
    ],
)
def test_the_client_gets_the_response_that_the_operator_gave(
    doubted: Stack, cli: Cli, result: dict[str, Any], body: bytes, content_type: str | None
) -> None:
    assert resolve(cli, "--done", "--result", json.dumps(result)).code == 0
    retry = doubted.request()
    assert (retry.status, retry.body, retry["content-type"], retry.replayed) == (201, body, content_type, True)
    assert retry["location"] == result.get("headers", {}).get("Location")
    assert len(doubted.calls) == 1


@pytest.mark.parametrize(
    "result",
    [
        {"paid": 1}, 7, None, {}, {"status": "201"}, {"status": 100}, {"status": True}, {"status": 204, "body": "text"},
        {"status": 201, "headers": ["location"]}, {"status": 201, "headers": {"location": "a\r\nset-cookie: b"}},
        {"status": 201, "headers": {"Set-Cookie": "session=1"}}, {"status": 201, "headers": {"a b": "c"}},
    ],
)  # fmt: skip
def test_a_result_that_is_no_response_is_refused_and_nothing_changes(doubted: Stack, cli: Cli, result: Any) -> None:
    refused = resolve(cli, "--done", "--result", json.dumps(result))
    assert (refused.code, "[invalid-option]" in refused.err) == (2, True)
    assert doubted.request().code == "in-doubt"


def test_the_refusal_shows_the_shape(doubted: Stack, cli: Cli) -> None:
    refused = " ".join(resolve(cli, "--done", "--result", '{"paid": 1}').err.split())
    assert '{"status": 201, "headers": {"location": "/o/1"}, "body": …}' in refused


def test_the_client_is_told_that_an_operator_decided_without_a_response(doubted: Stack, cli: Cli) -> None:
    assert resolve(cli, "--done").code == 0
    retry = doubted.request()
    assert (retry.status, retry.code, retry["retry-after"]) == (409, "result-not-stored", None)
    assert retry.json["detail"].startswith("An operator of this service has decided that it took effect.")


def test_a_result_from_elsewhere_that_is_no_response_is_not_called_an_unreachable_store(
    doubted: Stack, store: eo.Store
) -> None:
    store.resolve("http", KEY, "done", result={"paid": 1})
    retry = doubted.request()
    assert (retry.status, retry.code, retry["retry-after"]) == (409, "result-not-stored", None)
    assert "operator" in retry.json["detail"]


def test_done_from_a_program_without_a_result_is_not_called_too_large(doubted: Stack, store: eo.Store) -> None:
    store.resolve("http", KEY, "done")
    retry = doubted.request()
    assert (retry.status, retry.code) == (409, "result-not-stored")
    assert "too large" not in retry.json["detail"]


@pytest.mark.parametrize("profile", [ACP, AdCP], ids=["acp", "adcp"])
def test_a_decided_response_is_replayed_under_a_profile(store: eo.Store, cli: Cli, profile: Any) -> None:
    def fail(call: Call) -> Answer:
        raise RuntimeError("the bank hung up")

    stack = Asgi()
    stack.handler = fail
    stack.guard(store, profile.route(on_error="doubt"), profile=profile)
    key = "0123456789abcdef"
    body = json.dumps({"idempotency_key": key}).encode() if profile is AdCP else b"{}"
    with pytest.raises(RuntimeError, match="hung up"):
        stack.request(key, body=body)
    (record,) = store.list().records
    result = '{"status": 201, "body": {"paid": 1}}'
    assert cli("records", "resolve", "http", record.key, "--done", "--result", result, "--yes").code == 0
    retry = stack.request(key, body=body)
    assert (retry.status, retry.json["paid"], retry.replayed) == (201, 1, True)


def test_the_result_of_another_record_is_any_json(store: eo.Store, cli: Cli) -> None:
    @eo.once(store, scope="charge", key="id", on_error="doubt")
    def charge(id: str) -> dict[str, int]:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        charge("POST /charges")
    resolved = cli("records", "resolve", "charge", "POST /charges", "--done", "--result", '{"receipt": 1}', "--yes")
    assert resolved.code == 0
    assert charge("POST /charges") == {"receipt": 1}

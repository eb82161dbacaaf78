"""Calls of the clients as intents: written down, sent under one key, answered once, and resumed after a crash."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

import effectonce as eo
from effectonce.http.client import IntentLog, Settings
from effectonce.http.client.for_httpx import AsyncIdempotentTransport, IdempotentTransport
from effectonce.http.client.for_requests import IdempotentAdapter
from effectonce.providers import Provider

from .test_client import Api

BANK = Provider("bank", field="Bank-Key", window="24h")
SECRET = {"Authorization": "Bearer secret-token"}


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api(key="Bank-Key")
    yield api
    api.close()


class Bank:
    """A client of the bank's, of one library, whose calls are intents."""

    def __init__(self, library: str, path: Path, api: Api, provider: Provider = BANK, **settings: Any) -> None:
        self.store = eo.connect(f"sqlite:///{path / 'intents.db'}")
        self.intents = eo.Intents(self.store, scope="billing")
        self.url = f"{api.url}/charges"
        self.library = library
        log = IntentLog(self.intents, provider, credentials=lambda: SECRET)
        if library == "requests":
            self.session = requests.Session()
            self.session.mount("http://", IdempotentAdapter(Settings(**settings), log=log))
        elif library == "httpx":
            self.transport = IdempotentTransport(httpx.HTTPTransport(verify=False), log=log, **settings)
        else:
            self.atransport = AsyncIdempotentTransport(httpx.AsyncHTTPTransport(verify=False), log=log, **settings)

    def charge(self, message: str, **headers: str) -> tuple[int, bytes]:
        """What a handler of ``message`` does, also when it is run again: nothing of it was recorded."""
        handler = eo.once(eo.connect("memory://"), scope="charges", key="message", returns=None)
        answers: list[Any] = []

        @handler
        def handle(message: str) -> None:
            answers.append(self.post({**SECRET, "X-Trace": str(time.time_ns()), **headers}))

        handle(message)
        return answers[0].status_code, answers[0].content

    def post(self, headers: dict[str, str]) -> Any:
        if self.library == "requests":
            return self.session.post(self.url, data=b"amount=7", headers=headers, timeout=10)
        if self.library == "httpx":
            with httpx.Client(transport=Unclosed(self.transport), follow_redirects=True) as client:
                return client.post(self.url, content=b"amount=7", headers=headers)

        async def post() -> httpx.Response:
            async with httpx.AsyncClient(transport=AsyncUnclosed(self.atransport), follow_redirects=True) as client:
                return await client.post(self.url, content=b"amount=7", headers=headers)

        return asyncio.run(post())

    def recover(self) -> Any:
        if self.library == "httpx async":
            return asyncio.run(self.intents.arecover(idle="1us"))
        return self.intents.recover(idle="1us")

    @property
    def states(self) -> list[str]:
        return [record.state for record in self.store.list().records]


class Unclosed(httpx.BaseTransport):
    def __init__(self, inner: httpx.BaseTransport) -> None:
        self.handle_request = inner.handle_request  # type: ignore[method-assign]


class AsyncUnclosed(httpx.AsyncBaseTransport):
    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self.handle_async_request = inner.handle_async_request  # type: ignore[method-assign]


@pytest.fixture(params=["httpx", "httpx async", "requests"])
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_handler_that_runs_again_gets_the_answer_and_sends_nothing(library: str, tmp_path: Path, api: Api) -> None:
    """Mode K, without a word in the handler."""
    bank = Bank(library, tmp_path, api)
    api.told = [(201, {"X-Charge": "ch_1", "Content-Type": "text/plain"}, b"charged")]
    assert [bank.charge("m1"), bank.charge("m1")] == [(201, b"charged")] * 2
    assert (len(api.seen), bank.states) == (1, ["done"])
    assert bank.charge("m2") == (200, b"ok")
    assert len(set(api.keys)) == 2
    assert None not in api.keys


def test_a_refusal_is_an_answer_like_any_other(library: str, tmp_path: Path, api: Api) -> None:
    bank = Bank(library, tmp_path, api)
    api.told = [(402, {}, b"no money")]
    assert [bank.charge("m1"), bank.charge("m1")] == [(402, b"no money")] * 2
    assert (len(api.seen), bank.states) == (1, ["done"])


def test_a_redirect_leads_to_the_same_call_when_the_handler_runs_again(library: str, tmp_path: Path, api: Api) -> None:
    """Its answer came from the log then, without the header that was sent; so the call behind it got another key, and
    was made twice."""
    bank = Bank(library, tmp_path, api, Provider("bank", field="Idempotency-Key", window="24h"))
    api.told = [(307, {"Location": f"{api.url}/moved"}, b""), (201, {}, b"charged")]
    assert [bank.charge("m1"), bank.charge("m1")] == [(201, b"charged")] * 2
    assert (len(api.seen), bank.states) == (2, ["done", "done"])


def test_a_lost_answer_is_asked_for_under_the_same_key(library: str, tmp_path: Path, api: Api) -> None:
    bank = Bank(library, tmp_path, api)
    api.told = [None, (503, {"Retry-After": "0"}, b""), (201, {}, b"charged")]
    assert bank.charge("m1") == (201, b"charged")
    assert (len(api.seen), len(set(api.keys))) == (3, 1)


def test_f03_what_a_crash_interrupted_is_gone_on_with_and_no_secret_is_written_down(
    library: str, tmp_path: Path, api: Api
) -> None:
    bank = Bank(library, tmp_path, api, retries=0)
    api.told = [None, (201, {}, b"charged")]
    with pytest.raises(eo.OutcomeUnknown):
        bank.charge("m1")
    assert (bank.recover().done, bank.states) == (1, ["done"])
    assert bank.charge("m1") == (201, b"charged")
    assert (len(api.seen), len(set(api.keys)), api.authorized) == (2, 1, ["Bearer secret-token"] * 2)
    written = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert b"secret-token" not in written


def test_a_key_that_the_call_brings_is_kept(library: str, tmp_path: Path, api: Api) -> None:
    bank = Bank(library, tmp_path, api)
    api.key = "Idempotency-Key"
    for _ in range(2):
        assert bank.charge("m1", **{"Idempotency-Key": "mine"}) == (200, b"ok")
    assert api.keys == ["mine"]


def test_an_operators_retry_goes_out_under_a_new_key(tmp_path: Path, api: Api) -> None:
    """An API without keys of its own: the outcome is unknown, so an operator decides."""
    bank = Bank("httpx", tmp_path, api, retries=0)
    api.told = [None]
    with pytest.raises(eo.OutcomeUnknown):
        bank.charge("m1")
    (record,) = bank.store.list().records
    bank.store.forget(record.scope, record.key)
    assert bank.charge("m1") == (200, b"ok")
    assert len(set(api.keys)) == 2


def test_a_body_that_can_be_read_once_cannot_be_written_down(tmp_path: Path, api: Api) -> None:
    bank = Bank("httpx", tmp_path, api)
    with httpx.Client(transport=Unclosed(bank.transport)) as client, pytest.raises(eo.ConfigurationError):
        client.post(bank.url, content=iter([b"a"]))
    assert (api.seen, bank.states) == ([], [])


def test_a_provider_with_its_key_in_the_body_is_refused(tmp_path: Path) -> None:
    with eo.connect(f"sqlite:///{tmp_path / 'x.db'}") as store, pytest.raises(eo.ConfigurationError, match="body"):
        IntentLog(eo.Intents(store, scope="b"), Provider("adyen", carrier="body", window=1))

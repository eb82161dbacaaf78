"""Addresses of DynamoDB, lost connections and replies, and the errors that users see."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import pytest

from effectonce.backends.dynamodb.client import parse_target, translate
from effectonce.backends.dynamodb.store import DynamoDBBackend
from effectonce.contracts import ConnectionLost, Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    InvalidOption,
    MissingDriver,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
)
from effectonce.record import Answer, Remember, Resolution, Settlement
from effectonce.values.urls import Address
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy

from .table import HOUR, make_claim, table_url

pytest.importorskip("botocore.session", reason="pip install 'effectonce[dynamodb]'")

pytestmark = pytest.mark.quick_on("async")


def refusal(code: str, message: str = "", status: int = 400) -> Exception:
    from botocore.exceptions import ClientError

    reply = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error: Exception = ClientError(reply, "UpdateItem")
    return error


@pytest.mark.parametrize(
    ("error", "ours", "says"),
    [
        (refusal("ProvisionedThroughputExceededException"), StoreUnavailable, "throttled"),
        (refusal("ThrottlingException"), StoreUnavailable, "throttled"),
        (refusal("ResourceNotFoundException"), SchemaMissing, "effectonce migrate"),
        (refusal("AccessDeniedException"), ConfigurationError, "policy"),
        (refusal("UnrecognizedClientException"), ConfigurationError, "credentials"),
        (refusal("InvalidSignatureException", "Signature expired: 2026… is now earlier"), ConfigurationError, "NTP"),
        (refusal("InternalServerError", status=500), ConnectionLost, "failed"),
        (refusal("ValidationException", "The provided key element does not match the schema"), SchemaMismatch, "own"),
        (refusal("SomethingNew", "words"), ConfigurationError, "words"),
    ],
    ids=lambda value: None if isinstance(value, str | type) else value.response["Error"]["Code"],
)
def test_refusals_become_our_errors(error: Exception, ours: type[Exception], says: str) -> None:
    translated = translate(error, parse_target(Address("dynamodb://orders?region=eu-west-1")))
    assert type(translated) is ours
    assert says in str(translated)
    assert "dynamodb://orders" in str(translated)


def run_sync_or_async(url: str, work: Callable[[Port], Coroutine[Any, Any, Any]], kind: str) -> Any:
    backend = DynamoDBBackend(Address(url))

    async def on(port: Port) -> Any:
        try:
            return await work(port)
        finally:
            await port.close()

    if kind == "sync":
        return run_sync(on(backend.sync_port()))

    async def within() -> Any:
        return await on(backend.async_port())

    return asyncio.run(within())


SYNC_AND_ASYNC = pytest.mark.parametrize("kind", ["sync", "async"])


@SYNC_AND_ASYNC
def test_a_table_that_is_not_there_is_schema_missing(dynamodb_url: str, kind: str, unique_name: str) -> None:
    with pytest.raises(SchemaMissing, match="effectonce migrate"):
        run_sync_or_async(table_url(dynamodb_url, unique_name), lambda port: port.run([make_claim("k")]), kind)


@SYNC_AND_ASYNC
def test_an_address_without_a_server_is_unavailable_at_once(kind: str, aws: None) -> None:
    """F36."""
    url = f"dynamodb://orders?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable):
        run_sync_or_async(url, lambda port: port.run([make_claim("k")]), kind)
    assert time.monotonic() - begun < 4


@SYNC_AND_ASYNC
def test_a_service_that_hangs_is_unavailable_within_the_timeout(table: str, kind: str, key: str) -> None:
    """F36: in mid-use, and for all of a batch; once it answers again, so do we."""
    with FaultProxy(urlsplit(table.partition("endpoint=")[2]).port or 0) as proxy:

        async def work(port: Port) -> list[Any]:
            await port.now()
            proxy.blackhole = True
            begun = time.monotonic()
            replies = await port.run([make_claim(f"{key}-{n}") for n in range(3)])
            assert time.monotonic() - begun < 4
            proxy.heal()
            proxy.reset()
            (again,) = await port.run([make_claim(f"{key}-again")])
            assert isinstance(again, Answer)
            return list(replies)

        replies = run_sync_or_async(f"{proxy.through(table)}&timeout=1s&connect_timeout=1s", work, kind)
    assert [type(reply) for reply in replies] == [StoreUnavailable] * 3


@SYNC_AND_ASYNC
def test_a_claim_and_a_completion_whose_replies_are_lost_answer_as_if_they_were_not(
    table: str, kind: str, key: str
) -> None:
    """F68: the SDK sends them again by itself."""
    with FaultProxy(urlsplit(table.partition("endpoint=")[2]).port or 0) as proxy:

        async def work(port: Port) -> None:
            await port.now()
            claim = make_claim(key, max_attempts=1)
            proxy.drop_reply(to=b"UpdateItem")
            (granted,) = await port.run([claim])
            assert isinstance(granted, Answer)
            assert (granted.kind, granted.attempts) == ("claimed", 1)
            release = Settlement("scope", key, claim.owner, granted.token, "free", HOUR, refund=True)
            proxy.drop_reply(to=b"UpdateItem")
            assert list(await port.run([release])) == [True]
            record = await port.get("scope", key)
            assert record is not None
            assert (record.state, record.attempts) == ("free", 0)
            proxy.drop_reply(to=b"PutItem")
            assert list(await port.run([Remember("scope", f"{key}-s", HOUR)])) == [True]

        run_sync_or_async(proxy.through(table), work, kind)


@SYNC_AND_ASYNC
def test_what_an_operator_did_is_done_once_where_the_reply_is_lost(table: str, kind: str, key: str) -> None:
    """F68: the SDK sends it again, and it finds its own write."""
    with FaultProxy(urlsplit(table.partition("endpoint=")[2]).port or 0) as proxy:

        async def work(port: Port) -> None:
            claim = make_claim(key)
            (granted,) = await port.run([claim])
            assert isinstance(granted, Answer)
            doubt = Settlement("scope", key, claim.owner, granted.token, "in_doubt", HOUR)
            assert list(await port.run([doubt])) == [True]
            for generation in (1, 2):
                proxy.drop_reply(to=b"PutItem")
                if generation == 1:
                    assert await port.resolve("scope", key, Resolution(state="free", retention_us=HOUR)) is True
                else:
                    assert await port.forget("scope", key, HOUR) is True
                record = await port.get("scope", key)
                assert record is not None
                assert (record.state, record.generation) == ("free", generation)

        run_sync_or_async(proxy.through(table), work, kind)


def test_no_credentials_is_a_configuration_error(
    dynamodb_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with pytest.raises(ConfigurationError, match="credentials"):
        run_sync(DynamoDBBackend(Address(dynamodb_url)).sync_port().now())
    with pytest.raises(ConfigurationError, match="region"):
        run_sync(DynamoDBBackend(Address("dynamodb://orders")).sync_port().now())
    with pytest.raises(ConfigurationError, match="profile"):
        run_sync(DynamoDBBackend(Address("dynamodb://orders?region=us-east-1&profile=none")).sync_port().now())


# -- addresses


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://ab",
        "dynamodb://orders/path",
        "dynamodb://orders;drop",
        "dynamodb://orders?regoin=eu-west-1",
        "dynamodb://orders?timeout=soon",
        "dynamodb://orders?endpoint=127.0.0.1:8000",
        "dynamodb://AKIAX:canary-password@orders",
        "dynamodb://orders?endpoint=http://me:canary-password@127.0.0.1:8000",
    ],
)
def test_a_bad_address_is_refused_without_its_secret(url: str) -> None:
    """F61, F66."""
    with pytest.raises(InvalidOption) as caught:
        DynamoDBBackend(Address(url))
    assert "canary" not in str(caught.value)


def test_an_address_keeps_the_case_of_its_table_and_shows_no_more_than_it_should() -> None:
    backend = DynamoDBBackend(Address("dynamodb://Orders.v2-EU?region=eu-west-1&timeout=500ms&connect_timeout=2"))
    assert (backend.target.table, backend.target.timeout, backend.target.connect_timeout) == ("Orders.v2-EU", 0.5, 2.0)
    assert repr(backend) == "dynamodb://Orders.v2-EU?region=eu-west-1"


def test_without_the_sdk_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectonce.backends.common.drivers.find_spec", lambda name: None)
    with pytest.raises(MissingDriver, match=r"effectonce\[dynamodb\]"):
        DynamoDBBackend(Address("dynamodb://orders"))


def test_importing_the_store_imports_no_sdk() -> None:
    code = "import sys, effectonce.backends.dynamodb.store; sys.exit(any('boto' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Calls with many entries, without a server: what becomes of each where SQS refuses the call, or a part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from effectonce.backends.sqs.client import SQSClient, SQSRefusal
from effectonce.errors import BrokerUnavailable

Answer = Callable[[list[str]], dict[str, Any]]


def client_that(answers: Answer) -> tuple[SQSClient, list[list[str]]]:
    """A client whose calls are answered by ``answers``, from their bodies. Returns it, and the bodies of its calls."""
    client = SQSClient.__new__(SQSClient)
    calls: list[list[str]] = []

    async def call(operation: str, queue: str, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        bodies = [entry["MessageBody"] for entry in Entries]
        calls.append(bodies)
        answers(bodies)
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries if entry["MessageBody"] != "unreported"]}

    client.call = call  # type: ignore[method-assign, assignment]
    client.account = "sqs"  # type: ignore[assignment]
    return client, calls


def refuse_bad(bodies: list[str]) -> dict[str, Any]:
    if "bad" in bodies:
        raise SQSRefusal("an invalid body")
    return {}


def entries(*bodies: str) -> list[dict[str, Any]]:
    return [{"MessageBody": body} for body in bodies]


async def test_entries_are_sent_ten_at_a_time() -> None:
    client, calls = client_that(lambda bodies: {})
    assert await client.send_entries("send", "q", entries(*map(str, range(23)))) == [None] * 23
    assert [len(bodies) for bodies in calls] == [10, 10, 3]


@pytest.mark.parametrize("bodies", [["bad"], ["bad", "good"], ["a", "bad", "b"]])
async def test_a_call_that_is_refused_as_a_whole_is_refused_for_the_entry_at_fault_only(bodies: list[str]) -> None:
    client, calls = client_that(refuse_bad)
    outcomes = await client.send_entries("send", "q", entries(*bodies))
    assert [isinstance(outcome, SQSRefusal) for outcome in outcomes] == [body == "bad" for body in bodies]
    assert [outcome for outcome in outcomes if not isinstance(outcome, SQSRefusal)] == [None] * (len(bodies) - 1)
    assert len(calls) == (1 if len(bodies) == 1 else 1 + len(bodies))


async def test_where_the_server_does_not_answer_every_entry_is_to_be_sent_again() -> None:
    def fail(bodies: list[str]) -> dict[str, Any]:
        raise BrokerUnavailable("away")

    client, calls = client_that(fail)
    outcomes = await client.send_entries("send", "q", entries("a", "b"))
    assert [type(outcome) for outcome in outcomes] == [BrokerUnavailable] * 2
    assert len(calls) == 1


async def test_an_entry_that_the_reply_does_not_name_is_to_be_sent_again() -> None:
    client, _ = client_that(lambda bodies: {})
    first, second = await client.send_entries("send", "q", entries("a", "unreported"))
    assert first is None
    assert isinstance(second, BrokerUnavailable)

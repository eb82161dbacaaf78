"""What a user is told when Kafka, its certificate or a token fails, and what is used again afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from effectonce.backends.kafka.dead_letters import KafkaDeadLetters
from effectonce.backends.kafka.endpoint import parse_cluster
from effectonce.backends.kafka.errors import is_refusal, translate
from effectonce.backends.kafka.security import TOKEN_LIFETIME_S
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.values.urls import Address

from .test_clients import Log, cluster_at, dead_letters_in, message


def failure(name: str, text: str) -> Any:
    return SimpleNamespace(name=lambda: name, str=lambda: text, fatal=lambda: False)


@pytest.mark.parametrize("text", ["OAuth token not set", "Failed to acquire SASL OAUTHBEARER token: no route"])
def test_where_there_is_no_token_yet_the_cluster_is_away_and_refuses_nobody(text: str) -> None:
    error = failure("_AUTHENTICATION", text)
    assert not is_refusal(error, cluster_at())
    ours = translate(error, cluster_at())
    assert isinstance(ours, BrokerUnavailable)
    assert "there is no token" in str(ours)


@pytest.mark.parametrize("name", ["_SSL", "_TRANSPORT"])
def test_a_certificate_that_is_not_trusted_refuses_the_client_and_says_what_to_add(name: str) -> None:
    error = failure(name, "ssl://h:9093: certificate verify failed: self-signed")
    assert is_refusal(error, cluster_at())
    ours = translate(error, cluster_at())
    assert isinstance(ours, ConfigurationError)
    assert "ca_file=" in str(ours)


def test_a_broken_connection_is_an_outage_and_a_broken_handshake_is_tls() -> None:
    assert isinstance(translate(failure("_TRANSPORT", "Connection reset"), cluster_at()), BrokerUnavailable)
    assert not is_refusal(failure("_TRANSPORT", "Connection reset"), cluster_at())
    assert "TLS" in str(translate(failure("_SSL", "wrong version number"), cluster_at()))


def ask_for_token(fetch_token: Callable[[], str]) -> tuple[str, float]:
    """As librdkafka does it, with the settings of a cluster."""
    address = Address("kafka://h")
    address.password_provider = fetch_token
    config = parse_cluster(address).config
    assert config["sasl.mechanism"] == "OAUTHBEARER"
    answer: tuple[str, float] = config["oauth_cb"]("")
    return answer


def test_a_token_of_a_function_is_asked_for_again_before_it_may_have_expired() -> None:
    token, expires_at = ask_for_token(lambda: "t0ken")
    assert token == "t0ken"
    assert 0 < expires_at - time.time() <= TOKEN_LIFETIME_S


def test_a_function_that_has_no_token_is_logged_since_the_driver_drops_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> str:
        raise OSError("the vault is away")

    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="vault"):
        ask_for_token(fail)
    assert "the vault is away" in caplog.text


# -- dead letters


async def failing(log: Log, dead_letters: KafkaDeadLetters, answer: Any) -> Exception:
    """What counting raises when the reader of the topic answers with ``answer``."""

    def consume(count: int, timeout: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    log.consume = consume  # type: ignore[method-assign]
    with pytest.raises((BrokerUnavailable, ConfigurationError)) as caught:
        await dead_letters.count()
    return caught.value


@pytest.mark.parametrize(
    "answer",
    [[], KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))],
    ids=["silence", "an error of the driver"],
)
async def test_a_reader_that_failed_is_closed_and_the_next_call_opens_another(
    monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    dead_letters, log = dead_letters_in(message(b"a", offset=0))
    closed: list[bool] = []
    log.close = lambda: closed.append(True)  # type: ignore[method-assign]
    assert isinstance(await failing(log, dead_letters, answer), BrokerUnavailable)
    assert closed == [True]
    fresh = Log()
    fresh.messages = [message(b"a", offset=0), message(b"b", offset=1)]
    monkeypatch.setattr(dead_letters, "_open_client", lambda: fresh)
    assert await dead_letters.count() == 2
    await dead_letters.close()


async def test_an_error_of_the_topic_is_raised_and_not_taken_for_its_end() -> None:
    dead_letters, log = dead_letters_in()
    broken = message(offset=0)
    broken.error = lambda: SimpleNamespace(code=lambda: 29, name=lambda: "TOPIC_AUTHORIZATION_FAILED", str=lambda: "no")
    assert "ACLs" in str(await failing(log, dead_letters, [broken]))
    await dead_letters.close()


async def test_why_nothing_can_be_read_is_told_in_place_of_silence() -> None:
    dead_letters, log = dead_letters_in()
    dead_letters._handle_error(failure("_TRANSPORT", "one broker is down"))  # it passes: others may answer
    assert "does not answer" in str(await failing(log, dead_letters, []))
    dead_letters, log = dead_letters_in()
    dead_letters._handle_error(failure("TOPIC_AUTHORIZATION_FAILED", "no"))
    dead_letters._handle_error(failure("_ALL_BROKERS_DOWN", "all are down"))  # which follows from the refusal
    assert isinstance(await failing(log, dead_letters, []), ConfigurationError)
    dead_letters, log = dead_letters_in()
    dead_letters._handle_error(failure("_ALL_BROKERS_DOWN", "all are down"))
    assert "all are down" in str(await failing(log, dead_letters, []))


async def test_a_dead_letter_that_cannot_be_removed_is_an_error_and_not_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead_letters, _ = dead_letters_in(message(b"a", offset=0))

    async def send(topic: str, records: Any) -> list[Any]:
        return [BrokerUnavailable("the tombstone was not confirmed")]

    monkeypatch.setattr(dead_letters._producer, "send", send)
    with pytest.raises(BrokerUnavailable, match="tombstone"):
        await dead_letters.remove(["a"])
    await dead_letters.close()

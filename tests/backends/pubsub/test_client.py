"""What the client makes of Google's errors: those that pstest never gives are played here."""

from collections.abc import Sequence
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, TransportError

from effectonce.backends.pubsub import client as module
from effectonce.backends.pubsub.client import (
    MissingPubSubResource,
    PubSubClient,
    PubSubRefusal,
    parse_target,
    translate,
)
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.values.urls import Address

TARGET = parse_target(Address("pubsub://my-shop"))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (exceptions.NotFound("topic"), MissingPubSubResource, "declare"),
        (exceptions.PermissionDenied("no"), ConfigurationError, "roles/pubsub.subscriber"),
        (exceptions.Unauthenticated("no"), ConfigurationError, "credentials"),
        (DefaultCredentialsError("none found"), ConfigurationError, "GOOGLE_APPLICATION_CREDENTIALS"),
        (exceptions.InvalidArgument("too long"), PubSubRefusal, "too long"),
        (exceptions.FailedPrecondition("no"), PubSubRefusal, "does not accept"),
        (exceptions.AlreadyExists("there"), PubSubRefusal, "there"),
        (exceptions.ServiceUnavailable("away"), BrokerUnavailable, "away"),
        (exceptions.DeadlineExceeded("slow"), BrokerUnavailable, "slow"),
        (exceptions.Aborted("again"), BrokerUnavailable, "again"),
        (exceptions.ResourceExhausted("quota"), BrokerUnavailable, "quota"),
        (exceptions.InternalServerError("oops"), BrokerUnavailable, "oops"),
        (TransportError("metadata server"), BrokerUnavailable, "metadata"),
        (
            exceptions.ServiceUnavailable("Ssl handshake failed: CERTIFICATE_VERIFY_FAILED: certificate verify failed"),
            ConfigurationError,
            "ca_file=",
        ),
    ],
)
def test_an_error_of_google_says_what_to_do(error: Exception, kind: type[Exception], words: str) -> None:
    ours = translate(error, TARGET)
    assert isinstance(ours, kind)
    assert words in str(ours)


def test_a_bug_of_ours_stays_what_it_is() -> None:
    bug = TypeError("ours")
    assert translate(bug, TARGET) is bug


# -- exactly-once delivery: the service tells which acks came too late


def failure(kind: type[exceptions.GoogleAPICallError], **reasons: str) -> Exception:
    info = {"reason": "", "domain": "pubsub.googleapis.com", "metadata": reasons}
    return kind("Some acknowledgement ids in the request were invalid", error_info=info)  # type: ignore[no-untyped-call]


class Service(PubSubClient):
    """Answers each call that settles with the next of ``answers``, and notes the ack ids that it was sent."""

    def __init__(self, *answers: Exception | None) -> None:
        super().__init__(TARGET)
        self.answers = list(answers)
        self.sent: list[Sequence[str]] = []

    async def call(self, method: str, request: Any, *, timeout: float | None = None) -> Any:
        self.sent.append(request["ack_ids"])
        if (error := self.answers.pop(0)) is not None:
            raise translate(error, self.target) from error


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACK_RETRY_PAUSE_S", 0.0)


async def test_f54_an_ack_id_that_the_service_calls_invalid_is_no_longer_ours() -> None:
    service = Service(failure(exceptions.FailedPrecondition, b="PERMANENT_FAILURE_INVALID_ACK_ID"))
    assert await service.settle("acknowledge", "s", ["a", "b", "c"]) == [True, False, True]


async def test_an_ack_that_failed_for_now_is_sent_again_alone() -> None:
    service = Service(
        failure(
            exceptions.ServiceUnavailable,
            b="TRANSIENT_FAILURE_UNORDERED_ACK_ID",
            c="PERMANENT_FAILURE_INVALID_ACK_ID",
        ),
        None,
    )
    assert await service.settle("acknowledge", "s", ["a", "b", "c"]) == [True, True, False]
    assert service.sent == [["a", "b", "c"], ["b"]]


async def test_an_ack_that_fails_again_and_again_is_an_outage() -> None:
    again = failure(exceptions.ServiceUnavailable, a="TRANSIENT_FAILURE_UNORDERED_ACK_ID")
    service = Service(*[again] * module.MAX_ACK_TRIES)
    with pytest.raises(BrokerUnavailable, match="1 deliveries"):
        await service.settle("acknowledge", "s", ["a"])


async def test_an_outage_while_acks_are_sent_is_raised() -> None:
    with pytest.raises(BrokerUnavailable):
        await Service(exceptions.ServiceUnavailable("away")).settle("acknowledge", "s", ["a"])


async def test_many_ack_ids_are_sent_in_several_calls() -> None:
    service = Service(None, failure(exceptions.FailedPrecondition, **{"1000": "PERMANENT_FAILURE_INVALID_ACK_ID"}))
    accepted = await service.settle("acknowledge", "s", [str(number) for number in range(1001)])
    assert [len(ids) for ids in service.sent] == [1000, 1]
    assert accepted == [True] * 1000 + [False]

"""Azure Service Bus, as far as it can be tried without the service: the SDK against a peer of ours, and the mapping.

The peer (`tests/harness/servicebus.js`) does what the service is documented to do. What passes here has met the SDK and
AMQP, not Azure.
"""

import inspect
import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import psutil
import pytest
from azure.core.exceptions import ClientAuthenticationError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.amqp import AmqpMessageHeader
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
)
from azure.servicebus.management import QueueProperties
from azure.servicebus.management._models import InternalQueueDescription
from hypothesis import given
from hypothesis import strategies as st

from effectonce.babelqueue.bindings import BabelQueuePacket
from effectonce.backends.servicebus import client as servicebus_client
from effectonce.backends.servicebus import queues as servicebus_queues
from effectonce.backends.servicebus.broker import ServiceBusBackend
from effectonce.backends.servicebus.client import ServiceBusNamespace, translate
from effectonce.backends.servicebus.messages import MAX_DESCRIPTION_CHARS, make_message, read_packet, write_description
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.message import REDRIVEN_HEADER
from effectonce.testing.suites import BrokerCase, Site
from effectonce.testing.suites.brokers import order
from effectonce.values.urls import Address
from tests.backends import side_by_side
from tests.backends.queue_under_test import QueueUnderTest, receive
from tests.conftest import skip_or_fail
from tests.harness.installed import Missing
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy
from tests.harness.servicebus import ServiceBusPeer, servicebus
from tests.harness.waiting import auntil

GROUP = "workers"
AZURE = "servicebus://Root:canary%2F%3D@name.servicebus.windows.net"


def peer(lock: float) -> Iterator[ServiceBusPeer]:
    try:
        running = servicebus(lock=lock)
    except Missing as missing:
        skip_or_fail(str(missing))
    yield running
    running.close()


@pytest.fixture(scope="module")
def patient() -> Iterator[ServiceBusPeer]:
    yield from peer(30.0)


@pytest.fixture(scope="module")
def hasty() -> Iterator[ServiceBusPeer]:
    yield from peer(4.0)


def backend(url: str) -> ServiceBusBackend:
    return ServiceBusBackend(Address(f"{url}&timeout=10s"))


# -- the contract, against the peer


@pytest.mark.skipif("EFFECTONCE_TEST_SERVICEBUS_URL" not in os.environ, reason="needs a namespace of Azure Service Bus")
def test_the_contract_on_the_service_itself() -> None:
    """Never run so far. The URL may say ack_window=5s, the shortest that there is, for cases that wait for it."""
    url = os.environ["EFFECTONCE_TEST_SERVICEBUS_URL"]
    side_by_side.run(lambda: Site(backend=ServiceBusBackend(Address(url))), threads=8, delay=2.0, quiet=1.0)


@pytest.mark.quick_on("yes")
@pytest.mark.parametrize(("sessions", "parts"), [("no", None), ("yes", (order,))])
def test_the_contract(
    patient: ServiceBusPeer, hasty: ServiceBusPeer, sessions: str, parts: tuple[ModuleType, ...] | None
) -> None:
    def site(server: ServiceBusPeer) -> Callable[[], Site]:
        return lambda: Site(
            backend=backend(f"{server.url}&sessions={sessions}"),
            unreachable=backend(f"servicebus://a:b@127.0.0.1:{free_port()}?emulator=yes"),
            locked=backend(server.url_with("wrong-canary")),
            secret="wrong-canary",
        )

    side_by_side.run((site(patient), site(hasty)), threads=30, parts=parts, quiet=0.3)


#: The peer keeps nothing. And to open and close eighteen things takes the SDK twenty seconds.
NOT_HERE = ["both_ends_recover_from_a_restart", "a_closed_backend_leaves_nothing_open"]


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("case", side_by_side.alone(skip=NOT_HERE), ids=str)
def test_the_contract_alone(case: BrokerCase, hasty: ServiceBusPeer) -> None:
    with FaultProxy(hasty.port) as proxy:
        case.run(Site(backend=backend(proxy.through(hasty.url)), cut=proxy.reset), quiet=0.3)


# -- what is its own


async def test_a_second_message_with_the_same_id_is_dropped_and_a_redriven_one_is_not(
    patient: ServiceBusPeer, unique_name: str
) -> None:
    broker = backend(patient.url)
    publisher, consumer = broker.publisher(), broker.consumer(unique_name, group=GROUP, prefetch=10)
    sent = [
        Packet(body=b"once", id="id"),
        Packet(body=b"again", id="id"),
        Packet(body=b"redriven", id="id", headers={REDRIVEN_HEADER: "run"}),
    ]
    assert await publisher.publish(unique_name, sent) == [None] * 3
    found = []
    while page := await consumer.receive(10, 1.0):
        found += page
        assert all(await consumer.ack(page))
    assert sorted((each.packet.body, each.packet.id) for each in found) == [(b"once", "id"), (b"redriven", "id")]
    await publisher.close()
    await consumer.close()


async def test_f44_only_the_packet_that_is_too_large_is_refused(patient: ServiceBusPeer, unique_name: str) -> None:
    publisher = backend(patient.url).publisher()
    sizes = (10, 300_000, 200_000, 200_000)
    answers = await publisher.publish(
        unique_name, [Packet(body=b"x" * size, id=str(at)) for at, size in enumerate(sizes)]
    )
    await publisher.close()
    assert [answer is None for answer in answers] == [True, False, True, True]
    assert isinstance(answers[1], ConfigurationError)


async def test_dead_letters_are_counted(patient: ServiceBusPeer, unique_name: str) -> None:
    under_test = QueueUnderTest(backend(patient.url), unique_name)
    await under_test.publish(b"a", b"b", b"c")
    consumer, dead_letters = await under_test.consumer(), under_test.dead_letters()
    for number, bad in enumerate(await receive(consumer, 3)):
        assert await dead_letters.count() == number
        assert await consumer.dead_letter(bad, {"why": "test"})
    assert await dead_letters.count() == 3
    await under_test.close()


async def test_what_is_closed_leaves_no_connection_open(patient: ServiceBusPeer, unique_name: str) -> None:
    broker, process = backend(patient.url), psutil.Process()

    def connections() -> int:
        return sum(bool(each.raddr) and each.raddr.port == patient.port for each in process.net_connections("tcp"))

    before = connections()
    publisher, consumer = broker.publisher(), broker.consumer(unique_name, group=GROUP, prefetch=10)
    await publisher.publish(unique_name, [Packet(body=b"x")])
    assert len(await consumer.receive(1, 30.0)) == 1
    assert connections() > before
    await publisher.close()
    await consumer.close()
    await broker.close()
    await auntil(lambda: connections() == before)


async def test_a_queue_that_is_not_there_is_a_configuration_error(patient: ServiceBusPeer) -> None:
    broker = backend(patient.url)
    publisher, consumer = broker.publisher(), broker.consumer("missing", group=GROUP, prefetch=1)
    for work in (
        lambda: publisher.publish("missing", [Packet(body=b"x")]),
        lambda: consumer.receive(1, 0.1),
        lambda: broker.check("missing", group=GROUP),
    ):
        with pytest.raises(ConfigurationError, match="declare"):
            await work()
    await publisher.close()
    await consumer.close()


# -- the mapping, with the SDK's own messages and their encoding


def received(message: Any, *, deliveries: int = 0, **properties: str) -> ServiceBusReceivedMessage:
    """``message`` as a receiver gets it, after ``deliveries`` in vain, with what the service writes on it."""
    raw = message.raw_amqp_message
    raw.header = AmqpMessageHeader(delivery_count=deliveries)
    raw.application_properties = {**(raw.application_properties or {}), **properties}
    encoded = encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw))
    return ServiceBusReceivedMessage.from_bytes(bytes(encoded))


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
packets = st.builds(
    Packet,
    body=st.binary(max_size=60),
    headers=st.dictionaries(text.filter(lambda name: name and not name.startswith(("eo-", "Dead"))), text, max_size=9),
    id=text | st.just("long" * 60),
    ordering_key=st.none() | text,
)


@given(packets, st.integers(0, 3), st.integers(0, 3))
def test_a_packet_survives_the_journey(packet: Packet, deliveries: int, before: int) -> None:
    message = make_message(packet, attempts=before)
    assert 0 < len(message.message_id) <= 128
    assert read_packet(received(message, deliveries=deliveries)) == (packet, before + deliveries + 1)


def test_the_id_is_the_message_id_but_for_copies_and_redriven_messages() -> None:
    packet = Packet(body=b"x", id="id")
    assert make_message(packet).message_id == "id"
    for other in (
        make_message(packet, attempts=1),
        make_message(Packet(body=b"x", id="id", headers={REDRIVEN_HEADER: "run"})),
        make_message(Packet(body=b"x", id="id", headers={"eo-dead": "{}"})),
    ):
        assert other.message_id != "id"
        assert read_packet(received(other))[0].id == "id"


def test_a_message_of_babelqueue_has_its_fields_and_numbers() -> None:
    headers = {"bq-job": "urn:x", "bq-trace-id": "t", "bq-schema-version": "1", "bq-created-at": "1749132727000"}
    message = make_message(BabelQueuePacket(body=b"{}", headers=headers, id="id"))
    assert (message.subject, message.correlation_id, message.content_type) == ("urn:x", "t", "application/json")
    assert message.application_properties is not None
    assert message.application_properties["bq-schema-version"] == 1
    assert read_packet(received(message))[0].headers == headers


def test_a_copy_of_another_senders_message_keeps_its_fields_and_numbers() -> None:
    message = ServiceBusMessage(
        b"{}",
        subject="urn:x",
        correlation_id="t",
        application_properties={"bq-schema-version": 1, "nothing": None},  # type: ignore[dict-item]
    )
    packet = read_packet(received(message))[0]
    assert packet.headers == {"bq-schema-version": "1"}
    copy = make_message(packet, attempts=1)
    assert (copy.subject, copy.correlation_id, copy.content_type) == ("urn:x", "t", None)
    assert copy.application_properties["bq-schema-version"] == 1


def test_of_a_long_traceback_a_dead_letter_keeps_the_end() -> None:
    frames = '  File "shop.py", line 1, in "book"\n' * 400
    cause = {"why": "attempts-exhausted", "text": "'sku'", "traceback": f"{frames}KeyError: 'sku'"}
    description = write_description({"eo-dead": json.dumps(cause)})
    assert len(description) <= MAX_DESCRIPTION_CHARS
    kept = json.loads(json.loads(description)["eo-dead"])
    assert (kept["why"], kept["text"]) == ("attempts-exhausted", "'sku'")
    assert kept["traceback"].endswith("KeyError: 'sku'")


def test_a_dead_letter_says_why_in_our_words_or_in_those_of_the_service() -> None:
    why = {"eo-dead": "x" * 9000, "n": "3"}
    description = write_description(why)
    assert len(description) <= MAX_DESCRIPTION_CHARS
    ours = received(
        make_message(Packet(body=b"x")), DeadLetterReason="effectonce", DeadLetterErrorDescription=description
    )
    headers = read_packet(ours)[0].headers
    assert headers["n"] == "3"
    assert why["eo-dead"].startswith(headers["eo-dead"])
    theirs = received(
        make_message(Packet(body=b"x")), DeadLetterReason="TTLExpiredException", DeadLetterErrorDescription="too old"
    )
    assert json.loads(read_packet(theirs)[0].headers["eo-dead"]) == {"why": "TTLExpiredException", "text": "too old"}
    broken = received(make_message(Packet(body=b"x")), DeadLetterReason="effectonce", DeadLetterErrorDescription="{")
    assert "eo-dead" in read_packet(broken)[0].headers


# -- queues, against a stand-in for the SDK's administration client


class Administration:
    """It has one queue, or none, and remembers what it was asked to make."""

    def __init__(self, queue: QueueProperties | None = None, error: Exception | None = None) -> None:
        self.queue = queue
        self.error = error
        self.made: dict[str, Any] = {}

    async def __aenter__(self) -> "Administration":
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def create_queue(self, name: str, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        self.made[name] = options

    async def get_queue(self, name: str) -> QueueProperties:
        if self.queue is None:
            raise ResourceNotFoundError("no queue")
        return self.queue


@pytest.fixture
def administer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Administration], None]:
    async def seen(namespace: ServiceBusNamespace, queue: str) -> None:
        return None

    monkeypatch.setattr(servicebus_queues, "_open_sender", seen)
    return lambda stand_in: monkeypatch.setattr(ServiceBusNamespace, "administration", lambda self: stand_in)


async def test_declare_makes_the_queue_as_the_url_says(administer: Callable[[Administration], None]) -> None:
    stand_in = Administration()
    administer(stand_in)
    await ServiceBusBackend(Address(f"{AZURE}?ack_window=2m&dedup_window=1h&retention=7d")).declare("q", group=GROUP)
    assert stand_in.made["q"] == {
        "lock_duration": timedelta(minutes=2),
        "max_delivery_count": 2000,
        "default_message_time_to_live": timedelta(days=7),
        "dead_lettering_on_message_expiration": True,
        "requires_duplicate_detection": True,
        "requires_session": False,
        "duplicate_detection_history_time_window": timedelta(hours=1),
    }
    accepted = inspect.signature(ServiceBusAdministrationClient.create_queue).parameters
    assert set(stand_in.made["q"]) <= set(accepted)


async def test_declare_leaves_a_queue_that_is_there_alone(administer: Callable[[Administration], None]) -> None:
    administer(Administration(error=ResourceExistsError("there")))
    await ServiceBusBackend(Address(AZURE)).declare("q", group=GROUP)


async def test_declare_without_the_right_to_is_a_configuration_error(
    administer: Callable[[Administration], None],
) -> None:
    administer(Administration(error=ClientAuthenticationError("no")))
    with pytest.raises(ConfigurationError, match="check its role"):
        await ServiceBusBackend(Address(AZURE)).declare("q", group=GROUP)


def queue(**changed: Any) -> QueueProperties:
    made = QueueProperties._from_internal_entity("q", InternalQueueDescription())
    fine = {
        "lock_duration": timedelta(minutes=1),
        "default_message_time_to_live": timedelta(days=14),
        "requires_duplicate_detection": True,
        "requires_session": False,
        "dead_lettering_on_message_expiration": True,
    }
    for name, value in {**fine, **changed}.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        ({"lock_duration": timedelta(seconds=30)}, "ack_window"),
        ({"default_message_time_to_live": timedelta(days=30)}, "retention"),
        ({"requires_duplicate_detection": False}, "dedup_window=none"),
        ({"requires_session": True}, "sessions=yes"),
        ({"dead_lettering_on_message_expiration": False}, "dead-lettering on message expiration"),
    ],
)
async def test_a_queue_that_breaks_a_promise_is_refused(
    administer: Callable[[Administration], None], changed: dict[str, Any], remedy: str
) -> None:
    broker = ServiceBusBackend(Address(AZURE))
    administer(Administration(queue()))
    await broker.check("q", group=GROUP)
    administer(Administration(queue(**changed)))
    with pytest.raises(ConfigurationError, match=remedy):
        await broker.check("q", group=GROUP)


async def test_sessions_are_asked_for_and_found(administer: Callable[[Administration], None]) -> None:
    broker = ServiceBusBackend(Address(f"{AZURE}?sessions=yes"))
    administer(Administration(queue(requires_session=True)))
    await broker.check("q", group=GROUP)
    administer(Administration(queue()))
    with pytest.raises(ConfigurationError, match="has no sessions"):
        await broker.check("q", group=GROUP)


def test_a_session_is_an_ordering_key_and_the_others_share_a_few() -> None:
    keyed = make_message(Packet(body=b"1", id="a", ordering_key="order-7"), sessions=True)
    assert keyed.session_id == "order-7"
    others = {make_message(Packet(body=b"1", id=str(n)), sessions=True).session_id for n in range(100)}
    assert len(others) == 8


# -- addresses and errors


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("servicebus://", "name.servicebus.windows.net"),
        ("servicebus://a:b@host/queue", "name.servicebus.windows.net"),
        ("servicebus://a:b@host?ack_window=6m", "at most 5m"),
        ("servicebus://a:b@host?queue=x", "its options are"),
    ],
)
def test_a_wrong_address_says_what_is_right(url: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        ServiceBusBackend(Address(url))


def test_f66_the_key_is_in_nothing_that_is_printed() -> None:
    broker = ServiceBusBackend(Address(AZURE))
    assert "canary" not in repr(broker) + repr(vars(broker)) + repr(vars(broker.publisher()))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServiceBusAuthenticationError(message="no"), ConfigurationError),
        (MessagingEntityNotFoundError(message="no"), ConfigurationError),
        (MessageSizeExceededError(message="no"), ConfigurationError),
        (ServiceBusConnectionError(message="no"), BrokerUnavailable),
        (ServiceBusQuotaExceededError(message="full"), BrokerUnavailable),
        (TimeoutError(), BrokerUnavailable),
        (ConnectionResetError(), BrokerUnavailable),
        (KeyError("a bug"), KeyError),
    ],
)
def test_each_failure_has_its_error(error: Exception, kind: type[Exception]) -> None:
    namespace = servicebus_client.parse_namespace(Address(AZURE))
    assert isinstance(translate(error, namespace, "q"), kind)

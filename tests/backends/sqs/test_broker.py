"""SQS, on two servers that speak it: the contract for standard and for FIFO queues, and what is its own."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effectonce.backends.sqs.broker import SQSBackend
from effectonce.backends.sqs.client import parse_account, translate
from effectonce.backends.sqs.messages import make_entry, message_size, read_packet
from effectonce.contracts import Consumer, Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.message import REDRIVEN_HEADER
from effectonce.testing.suites import BrokerCase, Site
from effectonce.values.urls import Address
from tests.backends import side_by_side
from tests.backends.queue_under_test import assert_exits_silently
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy

pytestmark = pytest.mark.quick_on("ministack")

GROUP = "workers"


def backend(url: str, **options: str) -> SQSBackend:
    return SQSBackend(Address(url + "".join(f"&{name}={value}" for name, value in options.items())))


def endpoint(url: str) -> str:
    return url.partition("endpoint=")[2]


@pytest.fixture
def proxy(sqs_url: str) -> Iterator[FaultProxy]:
    if not endpoint(sqs_url):
        pytest.skip("needs a server of our own, for a proxy in front of it")
    with FaultProxy(int(endpoint(sqs_url).rpartition(":")[2])) as proxy:
        yield proxy


# -- the contract


def test_the_contract(sqs_url: str) -> None:
    def site(**options: str) -> Callable[[], Site]:
        nowhere = f"sqs://?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}"
        return lambda: Site(backend=backend(sqs_url, **options), unreachable=backend(nowhere, timeout="2s"))

    both = [(site(fifo=fifo), site(fifo=fifo, ack_window="4s")) for fifo in ("no", "yes")]
    side_by_side.run(*both, threads=20, delay=1.0, quiet=0.3)


@pytest.mark.chaos
@pytest.mark.parametrize("case", side_by_side.alone(skip=["both_ends_recover_from_a_restart"]), ids=str)
def test_the_contract_alone(case: BrokerCase, sqs_url: str, proxy: FaultProxy) -> None:
    site = Site(backend=backend(proxy.through(sqs_url), ack_window="2s"), cut=proxy.reset)
    case.run(site, delay=1.0, quiet=0.3)


# -- publishing


@pytest.fixture
async def fifo(sqs_url: str) -> AsyncIterator[SQSBackend]:
    made = backend(sqs_url, fifo="yes")
    yield made
    await made.close()


@pytest.fixture
async def standard(sqs_url: str) -> AsyncIterator[SQSBackend]:
    made = backend(sqs_url)
    yield made
    await made.close()


async def send(broker: SQSBackend, queue: str, *packets: Packet) -> None:
    await broker.declare(queue, group=GROUP)
    assert list(await broker.publisher().publish(queue, packets)) == [None] * len(packets)


async def drain(consumer: Consumer) -> list[bytes]:
    found: list[bytes] = []
    while page := await consumer.receive(10, 0.5):
        found += [delivery.packet.body for delivery in page]
        assert all(await consumer.ack(page))
    return found


async def test_f44_only_the_packets_that_are_too_large_are_refused(standard: SQSBackend, unique_name: str) -> None:
    """Ours is the first limit that they meet, so that no batch is refused for one of them."""
    await standard.declare(unique_name, group=GROUP)
    bodies = [b"small", b"x" * 300_000, b"\0" * 200_000, b"x" * 200_000, b"y" * 200_000, b"small too"]
    answers = await standard.publisher().publish(unique_name, [Packet(body=body) for body in bodies])
    assert [answer is None for answer in answers] == [True, False, False, True, True, True]
    assert all(isinstance(answer, ConfigurationError) and "max_message" in str(answer) for answer in answers[1:3])
    consumer = standard.consumer(unique_name, group=GROUP, prefetch=10)
    found = await drain(consumer)
    assert sorted(found) == sorted(bodies[at] for at in (0, 3, 4, 5))


async def test_a_consumer_takes_no_more_than_its_prefetch(standard: SQSBackend, unique_name: str) -> None:
    """Though SQS gives ten at most, and several calls go out at once for more: the rest is for other consumers."""
    await send(standard, unique_name, *(Packet(body=b"%d" % number) for number in range(45)))
    page = await standard.consumer(unique_name, group=GROUP, prefetch=20).receive(20, 5.0)
    others = await drain(standard.consumer(unique_name, group=GROUP, prefetch=100))
    assert 1 <= len(page) <= 20
    assert sorted([int(each.packet.body) for each in page] + list(map(int, others))) == list(range(45))


async def test_f44_a_message_of_exactly_the_largest_size_is_sent(standard: SQSBackend, unique_name: str) -> None:
    await standard.declare(unique_name, group=GROUP)
    (refusal,) = await standard.publisher().publish(unique_name, [Packet(body=b"x" * 300_000)])
    size, limit = map(int, re.findall(r"\d+", str(refusal)))
    largest = b"x" * (300_000 - (size - limit))
    answers = await standard.publisher().publish(unique_name, [Packet(body=largest), Packet(body=largest + b"x")])
    assert [answer is None for answer in answers] == [True, False]
    assert await drain(standard.consumer(unique_name, group=GROUP, prefetch=10)) == [largest]


@pytest.mark.parametrize("kind", ["standard", "fifo"])
async def test_f44_what_the_server_refuses_of_a_batch_is_refused_alone(
    sqs_url: str, unique_name: str, kind: str
) -> None:
    """One server refuses the whole batch for one message, the other only the message: the answers are the same."""
    broker = backend(sqs_url, fifo="yes" if kind == "fifo" else "no")
    await broker.declare(unique_name, group=GROUP)
    packets = [Packet(body=b"%d" % n, id=f"id-{n}") for n in range(12)]
    client = broker._client()
    sent = client.call

    async def spoiled(operation: str, queue: str = "", **parameters: Any) -> dict[str, Any]:
        """As if the fourth had a character that SQS does not take, and we had not seen it."""
        for entry in parameters.get("Entries", ()):
            if entry.get("MessageBody") == "3":
                entry["MessageBody"] = "\x03"
        return await sent(operation, queue, **parameters)

    client.call = spoiled  # type: ignore[method-assign]
    answers = await broker.publisher().publish(unique_name, packets)
    assert [answer is None for answer in answers] == [n != 3 for n in range(12)]
    consumer = broker.consumer(unique_name, group=GROUP, prefetch=20)
    assert sorted(map(int, await drain(consumer))) == [n for n in range(12) if n != 3]
    await broker.close()


async def test_on_a_fifo_queue_nothing_is_sent_behind_one_of_its_key_that_failed(
    fifo: SQSBackend, unique_name: str
) -> None:
    """Else the caller, who sends it again, would turn their order around."""
    await fifo.declare(unique_name, group=GROUP)
    sizes = [10, 10, 300_000, *[10] * 9]
    packets = [Packet(body=b"x" * size, id=f"id-{at}", ordering_key=f"k{at % 2}") for at, size in enumerate(sizes)]
    answers = await fifo.publisher().publish(unique_name, packets)
    assert [at for at, answer in enumerate(answers) if answer is None] == [0, 1, 3, 5, 7, 9, 11]
    assert isinstance(answers[4], BrokerUnavailable)


async def test_a_fifo_queue_drops_a_second_message_with_the_same_id(fifo: SQSBackend, unique_name: str) -> None:
    same = Packet(body=b"once", id="id ☕", ordering_key="k")
    await send(fifo, unique_name, same)
    await send(fifo, unique_name, same, Packet(body=b"other", id="id-2", ordering_key="k"))
    assert await drain(fifo.consumer(unique_name, group=GROUP, prefetch=10)) == [b"once", b"other"]


@pytest.mark.parametrize("mark", [REDRIVEN_HEADER, "eo-dead", "eo-dead-reason"])
async def test_a_fifo_queue_takes_a_message_that_is_redriven(fifo: SQSBackend, unique_name: str, mark: str) -> None:
    """SQS has seen its id within five minutes: it would confirm it, and drop it."""
    await send(fifo, unique_name, Packet(body=b"first", id="id"))
    for _ in range(2):
        await send(fifo, unique_name, Packet(body=b"again", id="id", headers={mark: "x"}))
    found = await drain(fifo.consumer(unique_name, group=GROUP, prefetch=10))
    assert sorted(found) == [b"again", b"again", b"first"]


@pytest.mark.chaos
async def test_f45_a_lost_reply_doubles_nothing_on_a_fifo_queue(
    sqs_url: str, proxy: FaultProxy, unique_name: str
) -> None:
    """The SDK sends the batch again by itself."""
    broker = backend(proxy.through(sqs_url), fifo="yes")
    await broker.declare(unique_name, group=GROUP)
    proxy.drop_reply(to=b"SendMessageBatch")
    await send(broker, unique_name, *(Packet(body=b"%d" % n, id=f"id-{n}", ordering_key="k") for n in range(3)))
    assert await drain(broker.consumer(unique_name, group=GROUP, prefetch=10)) == [b"0", b"1", b"2"]
    await broker.close()


@pytest.mark.chaos
async def test_f45_silence_is_no_confirmation(sqs_url: str, proxy: FaultProxy, unique_name: str) -> None:
    broker = backend(proxy.through(sqs_url))
    await broker.declare(unique_name, group=GROUP)
    proxy.refuse = True
    proxy.reset()
    with pytest.raises(BrokerUnavailable):
        await broker.publisher().publish(unique_name, [Packet(body=b"lost")])
    proxy.heal()
    await send(broker, unique_name, Packet(body=b"after"))
    await broker.close()


# -- windows


async def test_what_a_cancelled_receive_would_have_returned_is_there_for_the_next(
    standard: SQSBackend, unique_name: str
) -> None:
    """With a window of half a minute, nothing else could bring it in time."""
    await standard.declare(unique_name, group=GROUP)
    consumer = standard.consumer(unique_name, group=GROUP, prefetch=10)
    waiting = asyncio.ensure_future(consumer.receive(1, 20.0))
    await asyncio.sleep(0.3)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await send(standard, unique_name, Packet(body=b"kept"))
    (delivery,) = await consumer.receive(1, 10.0)
    assert delivery.packet.body == b"kept"
    assert await consumer.ack([delivery]) == [True]
    await consumer.close()


# -- start-up checks


def policy(client: Any, queue: str, target: str) -> None:
    client.create_queue(QueueName=target)
    url = client.get_queue_url(QueueName=queue)["QueueUrl"]
    arn = f"arn:aws:sqs:us-east-1:000000000000:{target}"
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 5})
    client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive})


async def test_a_queue_that_sqs_itself_takes_messages_from_is_refused(
    standard: SQSBackend, sqs_url: str, unique_name: str
) -> None:
    await standard.declare(unique_name, group=GROUP)
    client = boto3.client("sqs", region_name="us-east-1", endpoint_url=endpoint(sqs_url) or None)
    policy(client, unique_name, f"{unique_name}-dead")
    await standard.check(unique_name, group=GROUP)  # they come to where ours are
    policy(client, unique_name, f"{unique_name}-elsewhere")
    with pytest.raises(ConfigurationError, match=f"redrive policy, or let it name {unique_name}-dead"):
        await standard.check(unique_name, group=GROUP)


def test_a_program_that_closes_nothing_assert_exits_silently(sqs_url: str, unique_name: str) -> None:
    assert_exits_silently(sqs_url, unique_name)


async def test_a_queue_that_is_not_there_is_a_configuration_error(standard: SQSBackend, unique_name: str) -> None:
    for work in (
        lambda: standard.check(unique_name, group=GROUP),
        lambda: standard.publisher().publish(unique_name, [Packet(body=b"x")]),
        lambda: standard.consumer(unique_name, group=GROUP, prefetch=1).receive(1, 0.1),
    ):
        with pytest.raises(ConfigurationError, match="declare"):
            await work()


# -- messages

names = st.text(min_size=1, max_size=12) | st.sampled_from(["content-type", "AWS.x", "a..b", "bq-schema-version"])
packets = st.builds(
    Packet,
    body=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")),
    headers=st.dictionaries(names, st.text(max_size=20), max_size=14).filter(lambda headers: "eo" not in headers),
    id=st.text(max_size=10),
    ordering_key=st.none() | st.text(max_size=10),
)


@given(packets)
def test_a_packet_survives_the_journey(packet: Packet) -> None:
    entry = make_entry(packet)
    assert entry["MessageBody"]
    assert len(entry["MessageAttributes"]) <= 10
    assert all(attribute["StringValue"] for attribute in entry["MessageAttributes"].values())
    assert read_packet({"Body": entry["MessageBody"], "MessageAttributes": entry["MessageAttributes"]}) == packet


def test_headers_that_fit_are_attributes_that_others_can_read() -> None:
    headers = {"bq-job": "urn:x", "bq-schema-version": "1", "bad name": "y"}
    entry = make_entry(Packet(body=b"{}", headers=headers, numbers=frozenset(["bq-schema-version"])))
    assert entry["MessageBody"] == "{}"
    assert entry["MessageAttributes"]["bq-job"] == {"DataType": "String", "StringValue": "urn:x"}
    assert entry["MessageAttributes"]["bq-schema-version"] == {"DataType": "Number", "StringValue": "1"}
    assert "bad name" not in entry["MessageAttributes"]
    assert message_size(entry) > 40


@pytest.mark.parametrize("own", ["no json", "[]", '{"id": 7}', '{"headers": {"a": 1}}', '{"key": null, "id": []}'])
def test_f67_an_attribute_of_another_program_is_not_read_as_ours(own: str) -> None:
    attributes = {"eo": {"DataType": "String", "StringValue": own}, "b": {"DataType": "Binary", "BinaryValue": b"\0"}}
    packet = read_packet({"Body": "text", "MessageAttributes": attributes})
    assert packet == Packet(body=b"text", headers={"b": base64.b64encode(b"\0").decode()})


# -- addresses and errors


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqs://user:secret@host", "takes no credentials"),
        ("sqs://eu-west-1", r"sqs://\?region=eu-west-1"),
        ("sqs://?endpoint=localhost", "http://127.0.0.1:8000"),
        ("sqs://?ack_window=13h", "at most 12h"),
        ("sqs://?max_message=2000000", "1048576"),
        ("sqs://?queue=x", "its options are"),
    ],
)
def test_a_wrong_address_says_what_is_right(url: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as caught:
        SQSBackend(Address(url))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.b", "a" * 80, "x/y", "orders.fifo"])
async def test_f61_names_are_those_that_sqs_takes(name: str) -> None:
    with pytest.raises(InvalidOption):
        SQSBackend(Address("sqs://?region=us-east-1")).consumer(name, group=GROUP, prefetch=1)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", 400, ConfigurationError),
        ("InvalidClientTokenId", 403, ConfigurationError),
        ("ThrottlingException", 400, BrokerUnavailable),
        ("InternalError", 500, BrokerUnavailable),
        ("InvalidMessageContents", 400, ConfigurationError),
    ],
)
def test_each_refusal_has_its_error(code: str, status: int, kind: type[Exception]) -> None:
    from botocore.exceptions import ClientError

    account = parse_account(Address("sqs://?region=r"))
    reply: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert isinstance(translate(ClientError(reply, "SendMessageBatch"), account, "q"), kind)

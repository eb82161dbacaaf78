"""Messages, batches, checks and dead letters of SQS, with a stand-in for its client."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

from effectonce.backends.sqs import broker as module
from effectonce.backends.sqs.broker import SQSBackend, SQSConsumer, SQSPublisher
from effectonce.backends.sqs.client import MissingSQSQueue, SQSClient, SQSRefusal
from effectonce.backends.sqs.dead_letters import SQSDeadLetters
from effectonce.backends.sqs.messages import make_entry, message_size, read_packet
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.values.urls import Address


class Client:
    """Answers the calls of `SQSClient`, and notes them."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.calls: list[tuple[str, Any]] = []
        self.outcomes: list[Exception | None] = []
        self.replies: dict[str, Any] = {}
        self.receives: list[tuple[int, int]] = []

    async def call(self, operation: str, queue: str = "", **parameters: Any) -> Any:
        self.calls.append((operation, {"queue": queue, **parameters}))
        reply = self.replies.get(operation, {})
        if isinstance(reply, list):
            reply = reply.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def receive(self, queue: str, limit: int, *, wait: int, visibility_timeout: int) -> list[dict[str, Any]]:
        self.receives.append((limit, wait))
        received, self.messages = self.messages[: min(limit, 10)], self.messages[min(limit, 10) :]
        return received

    async def send_entries(self, operation: str, queue: str, entries: Any) -> list[Exception | None]:
        self.calls.append((operation, list(entries)))
        outcomes, self.outcomes = self.outcomes[: len(entries)], self.outcomes[len(entries) :]
        return outcomes or [None] * len(entries)

    send_chunk = send_entries

    def made(self, operation: str) -> list[Any]:
        return [entries for name, entries in self.calls if name == operation]


def stored(number: int, **attributes: str) -> dict[str, Any]:
    return {
        "MessageId": f"m{number}",
        "ReceiptHandle": f"r{number}",
        "Body": str(number),
        "Attributes": {"ApproximateReceiveCount": "3", "SentTimestamp": str(number), **attributes},
    }


# -- messages


@pytest.mark.parametrize(
    ("body", "text"), [(b"text\t\n\r", "text\t\n\r"), (b"", "="), (b"\xff", "/w=="), (b"\x00", "AA=="), (b"=", "=")]
)
def test_a_body_is_text_or_base64(body: bytes, text: str) -> None:
    entry = make_entry(Packet(body=body))
    assert entry["MessageBody"] == text
    assert read_packet({"Body": text, "MessageAttributes": entry["MessageAttributes"]}).body == body


@pytest.mark.parametrize(
    ("name", "is_attribute"),
    [
        *((name, True) for name in ("a", "a-b_c.D", "eo2", "a" * 256)),
        *((name, False) for name in ("a" * 257, "aws.x", "Amazon.x", ".a", "a..b", "é")),
    ],
)
def test_a_header_is_an_attribute_where_sqs_takes_its_name(name: str, is_attribute: bool) -> None:
    packet = Packet(body=b"x", headers={name: "value"})
    entry = make_entry(packet)
    assert (name in entry["MessageAttributes"]) == is_attribute
    assert ("eo" in entry["MessageAttributes"]) != is_attribute
    assert read_packet({"Body": "x", "MessageAttributes": entry["MessageAttributes"]}) == packet


def test_a_message_has_nine_attributes_at_most_beside_ours() -> None:
    packet = Packet(body=b"x", id="id", headers={f"h{n}": "v" for n in range(12)} | {"empty": ""})
    attributes = make_entry(packet)["MessageAttributes"]
    assert len(attributes) == 10
    assert read_packet({"Body": "x", "MessageAttributes": attributes}) == packet


def test_a_number_of_another_program_stays_one() -> None:
    attributes = {
        "n": {"DataType": "Number", "StringValue": "7"},
        "f": {"DataType": "Number", "StringValue": "1.5"},
        "t": {"DataType": "String", "StringValue": "7"},
        "b": {"DataType": "Binary", "BinaryValue": b"\xff"},
        "none": {"DataType": "Binary"},
    }
    packet = read_packet({"Body": "x", "MessageAttributes": attributes})
    assert packet.headers == {"n": "7", "f": "1.5", "t": "7", "b": base64.b64encode(b"\xff").decode(), "none": ""}
    assert packet.numbers == {"n"}
    kinds = {
        name: value["DataType"] for name, value in make_entry(packet)["MessageAttributes"].items() if name in "nft"
    }
    assert kinds == {"n": "Number", "f": "String", "t": "String"}
    assert read_packet({"Body": "x"}) == Packet(body=b"x")


def test_a_message_of_a_fifo_queue_has_a_group_and_an_id() -> None:
    keyed = make_entry(Packet(body=b"x", id="id", ordering_key="k"), fifo=True)
    assert (keyed["MessageGroupId"], keyed["MessageDeduplicationId"]) == ("k", "id")
    groups = {make_entry(Packet(body=b"x"), fifo=True)["MessageGroupId"] for _ in range(3)}
    assert len(groups) == 3  # without a key, nothing waits for another
    assert "MessageGroupId" not in make_entry(Packet(body=b"x", ordering_key="k"))
    assert len(make_entry(Packet(body=b"x", ordering_key="k" * 129), fifo=True)["MessageGroupId"]) == 64


def test_the_size_of_a_message_counts_names_types_and_values_in_bytes() -> None:
    entry = {"MessageBody": "é", "MessageAttributes": {"ab": {"DataType": "String", "StringValue": "é"}}}
    assert message_size(entry) == 2 + 2 + 6 + 2


# -- publishing


def publisher_on(client: Any, *, max_message: int = 1024, fifo: bool = False) -> SQSPublisher:
    return SQSPublisher(client, lambda queue: queue, max_message, fifo)


async def test_f44_a_message_of_the_largest_size_is_sent_and_one_byte_more_is_refused() -> None:
    client = Client()
    outcomes = await publisher_on(client).publish("q", [Packet(body=b"x" * 1024), Packet(body=b"x" * 1025)])
    assert [type(outcome) for outcome in outcomes] == [type(None), SQSRefusal]
    assert len(client.made("send_message_batch")) == 1


async def test_a_call_has_ten_messages_that_are_no_larger_together_than_one_may_be() -> None:
    client = Client()
    sizes = [1] * 12 + [1000, 24, 1, 2000, 1023]
    await publisher_on(client).publish("q", [Packet(body=b"x" * size) for size in sizes])
    sent = [[len(entry["MessageBody"]) for entry in entries] for entries in client.made("send_message_batch")]
    assert sorted(sent) == sorted([[1] * 10, [1, 1, 1000], [24, 1], [1023]])


@pytest.mark.parametrize("key", ["k", "other"])
async def test_on_a_fifo_queue_nothing_overtakes_one_of_its_key_that_failed(key: str) -> None:
    client = Client()
    client.outcomes = [BrokerUnavailable("down"), *[None] * 9]
    packets = [Packet(body=b"%d" % n, ordering_key="k" if n == 0 else f"k{n}") for n in range(10)]
    outcomes = await publisher_on(client, fifo=True).publish("q", [*packets, Packet(body=b"last", ordering_key=key)])
    assert isinstance(outcomes[10], BrokerUnavailable) == (key == "k")
    assert len(client.made("send_message_batch")) == (1 if key == "k" else 2)


# -- consuming


async def consumer_with(client: Any, count: int, *, window: int = 30, limit: int = 50) -> tuple[SQSConsumer, list[Any]]:
    client.messages = [stored(n) for n in range(count)]
    consumer = SQSConsumer(client, "q", "q", "q-dead", 100, window)
    return consumer, list(await consumer.receive(limit, 0.0)) if count else []


async def test_a_delivery_has_the_count_of_sqs() -> None:
    _, (delivery,) = await consumer_with(Client(), 1)
    assert (delivery.attempt, delivery.packet.body, delivery.handle.key) == (3, b"0", "r0")


@pytest.mark.parametrize(("count", "limit", "calls"), [(9, 50, 1), (25, 50, 5), (25, 20, 2), (25, 10, 1), (25, 5, 1)])
async def test_where_there_are_many_more_calls_are_made_at_once(count: int, limit: int, calls: int) -> None:
    client = Client()
    _, deliveries = await consumer_with(client, count, limit=limit)
    assert len(client.receives) == calls
    assert len(deliveries) == min(count, limit)


async def test_a_nack_hides_a_message_for_whole_seconds_and_twelve_hours_at_most() -> None:
    client = Client()
    consumer, deliveries = await consumer_with(client, 3)
    for delivery, delay in zip(deliveries, (0.0, 1.2, 1e6), strict=True):
        assert await consumer.nack([delivery], delay) == [True]
    hidden = [entries[0]["VisibilityTimeout"] for entries in client.made("change_message_visibility_batch")]
    assert hidden[:2] == [0, 2]
    assert 43_100 < hidden[2] < 43_200


async def test_an_extended_delivery_is_ours_for_that_long() -> None:
    client = Client()
    consumer, (first, second) = await consumer_with(client, 2)
    client.outcomes = [None, SQSRefusal("late")]
    assert await consumer.extend([first, second], 99.5) == [True, False]
    assert 90 < first.handle.ends_at - time.monotonic() <= 100
    assert client.made("change_message_visibility_batch")[0][0]["VisibilityTimeout"] == 100
    assert await consumer.ack([first, second]) == [True, False]


async def test_f54_a_delivery_whose_extension_was_throttled_is_still_ours() -> None:
    """One of several calls failed: the timeout has not moved, and has not ended either."""
    client = Client()
    consumer, (first, second) = await consumer_with(client, 2)
    ends_at = second.handle.ends_at
    client.outcomes = [None, BrokerUnavailable("throttled")]
    assert await consumer.extend([first, second], 99.0) == [True, True]
    assert second.handle.ends_at == ends_at
    assert await consumer.ack([first, second]) == [True, True]


async def test_where_no_settlement_was_answered_the_deliveries_stay_ours() -> None:
    client = Client()
    consumer, deliveries = await consumer_with(client, 2)
    client.outcomes = [BrokerUnavailable("down")] * 2
    with pytest.raises(BrokerUnavailable):
        await consumer.ack(deliveries)
    assert await consumer.ack(deliveries) == [True, True]
    assert await consumer.ack(deliveries) == [False, False]


async def test_a_dead_letter_is_sent_before_its_message_is_deleted() -> None:
    client = Client()
    consumer, (first, second) = await consumer_with(client, 2)
    client.outcomes = [SQSRefusal("no")]
    with pytest.raises(SQSRefusal):
        await consumer.dead_letter(first, {})
    assert client.made("delete_message_batch") == []
    assert await consumer.dead_letter(second, {"eo-dead": "why"}) is True
    assert [name for name, _ in client.calls][-2:] == ["send_message_batch", "delete_message_batch"]
    assert await consumer.dead_letter(second, {}) is False


async def test_close_shows_unsettled_messages_at_once() -> None:
    client = Client()
    consumer, (first, _) = await consumer_with(client, 2)
    await consumer.ack([first])
    await consumer.close()
    assert client.made("change_message_visibility_batch") == [[{"ReceiptHandle": "r1", "VisibilityTimeout": 0}]]


# -- dead letters


def dead_letters_of(client: Any) -> SQSDeadLetters:
    return SQSDeadLetters(client, "q", "q-dead")


async def test_dead_letters_are_listed_oldest_first_and_shown_to_others_again_at_the_end() -> None:
    client = Client(stored(3), stored(1), stored(2))
    dead_letters = dead_letters_of(client)
    page, cursor = await dead_letters.browse(2)
    assert [dead_letter.id for dead_letter in page] == ["m1", "m2"]
    assert cursor is not None
    assert client.made("change_message_visibility_batch") == []
    page, cursor = await dead_letters.browse(2, cursor)
    assert ([dead_letter.id for dead_letter in page], cursor) == (["m3"], None)
    assert len(client.made("change_message_visibility_batch")[-1]) == 3
    await dead_letters.close()
    assert len(client.made("change_message_visibility_batch")) == 1  # they are no longer hidden


async def test_what_was_listed_is_removed_without_receiving_more() -> None:
    client = Client(stored(1), stored(2))
    dead_letters = dead_letters_of(client)
    await dead_letters.browse(1)
    receives = len(client.receives)
    assert await dead_letters.remove(["m1"]) == 1
    assert len(client.receives) == receives
    assert client.made("delete_message_batch")[0] == [{"ReceiptHandle": "r1"}]


async def test_what_was_not_listed_is_received_until_it_is_found_and_the_others_shown_again() -> None:
    client = Client(*(stored(n) for n in range(25)))
    assert await dead_letters_of(client).remove(["m3", "m12", "m12"]) == 2
    assert len(client.receives) == 2
    assert client.made("delete_message_batch")[-1] == [{"ReceiptHandle": "r3"}, {"ReceiptHandle": "r12"}]
    assert len(client.made("change_message_visibility_batch")[-1]) == 18


async def test_only_what_sqs_has_deleted_counts_as_removed() -> None:
    client = Client(stored(1), stored(2))
    dead_letters = dead_letters_of(client)
    client.outcomes = []
    await dead_letters.browse(9)
    client.outcomes = [SQSRefusal("late")]
    assert await dead_letters.remove(["m1"]) == 0


async def test_dead_letters_are_counted_also_those_that_another_listing_hides() -> None:
    client = Client()
    client.replies["get_queue_attributes"] = {
        "Attributes": {"ApproximateNumberOfMessages": "4", "ApproximateNumberOfMessagesNotVisible": "3"}
    }
    assert await dead_letters_of(client).count() == 7


# -- the broker


def backend_on(client: Any, monkeypatch: pytest.MonkeyPatch, query: str = "") -> SQSBackend:
    monkeypatch.setattr(module.SQSBackend, "_client", lambda self: client)
    return SQSBackend(Address(f"sqs://?region=eu-west-1{query}"))


@pytest.mark.parametrize(
    ("query", "window", "max_body"),
    [("", 30.0, (262_144 - 16_384) * 3 // 4), ("&ack_window=1500ms&max_message=1024", 2.0, 384)],
)
def test_what_a_broker_says_of_itself(query: str, window: float, max_body: int) -> None:
    known = SQSBackend(Address(f"sqs://?{query}")).capabilities
    assert (known.ack_window_s, known.max_body, known.ordering, known.dedup_window_s) == (
        window,
        max_body,
        "none",
        None,
    )
    fifo = SQSBackend(Address("sqs://?fifo=yes")).capabilities
    assert (fifo.ordering, fifo.dedup_window_s) == ("key", 300.0)


@pytest.mark.parametrize(
    ("option", "is_valid"),
    [
        *((option, True) for option in ("ack_window=12h", "max_message=1024", "max_message=1048576")),
        *((option, False) for option in ("ack_window=43201s", "max_message=1023", "max_message=1048577")),
    ],
)
def test_options_have_the_limits_of_sqs(option: str, is_valid: bool) -> None:
    if is_valid:
        SQSBackend(Address(f"sqs://?{option}"))
    else:
        with pytest.raises(InvalidOption):
            SQSBackend(Address(f"sqs://?{option}"))


async def test_a_missing_queue_is_created_and_an_existing_one_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.replies["get_queue_attributes"] = [MissingSQSQueue("x"), {}]
    await backend_on(client, monkeypatch, "&fifo=yes").declare("q", group="g")
    (created,) = client.made("create_queue")
    assert (created["QueueName"], created["Attributes"]) == (
        "q.fifo",
        {"MessageRetentionPeriod": "1209600", "FifoQueue": "true"},
    )


async def test_a_queue_that_another_process_created_meanwhile_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.replies = {"get_queue_attributes": [MissingSQSQueue("x"), {}, {}], "create_queue": SQSRefusal("exists")}
    await backend_on(client, monkeypatch).declare("q", group="g")
    still_missing = Client()
    still_missing.replies = {"get_queue_attributes": MissingSQSQueue("x"), "create_queue": SQSRefusal("no")}
    with pytest.raises(MissingSQSQueue):
        await backend_on(still_missing, monkeypatch).declare("q", group="g")


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({}, ""),
        ({"RedrivePolicy": '{"deadLetterTargetArn": "arn:aws:sqs:r:1:q-dead"}'}, ""),
        ({"MaximumMessageSize": "262144"}, ""),
        ({"RedrivePolicy": '{"deadLetterTargetArn": "arn:aws:sqs:r:1:other"}'}, "redrive policy"),
        ({"MaximumMessageSize": "262143"}, "max_message=262143"),
    ],
)
async def test_a_queue_that_breaks_a_promise_is_refused(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, str], said: str
) -> None:
    client = Client()
    client.replies["get_queue_attributes"] = {"Attributes": attributes}
    backend = backend_on(client, monkeypatch)
    if said:
        with pytest.raises(ConfigurationError, match=said):
            await backend.check("q", group="g")
    else:
        await backend.check("q", group="g")


async def test_there_is_one_client_for_each_loop() -> None:
    backend = SQSBackend(Address("sqs://?region=eu-west-1"))
    assert backend._client() is backend._client()
    assert isinstance(backend._client(), SQSClient)
    await backend.close()
    await backend.close()


@pytest.mark.parametrize(("delay_s", "written"), [(0.0, None), (0.2, 1), (1.0, 1), (1.1, 2), (900.0, 900)])
def test_a_delay_is_in_whole_seconds_and_never_shorter(delay_s: float, written: int | None) -> None:
    assert make_entry(Packet(body=b"x", delay_s=delay_s)).get("DelaySeconds") == written


async def test_a_listing_that_receives_its_first_dead_letters_again_ends() -> None:
    """It took longer than it hides them."""
    client = Client(*(stored(n) for n in [1, 2, 3] * 20))
    dead_letters = dead_letters_of(client)
    page, cursor = await dead_letters.browse(10)
    assert ([dead_letter.id for dead_letter in page], cursor) == (["m1", "m2", "m3"], None)

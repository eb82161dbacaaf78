"""Pub/Sub: the contract, on Google's stand-in for it, and what is its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.pubsub import broker as module
from effectonce.backends.pubsub.broker import PubSubBackend
from effectonce.contracts import Consumer, Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.testing.suites import BrokerCase, Site
from effectonce.values.urls import Address
from tests.backends import side_by_side
from tests.backends.queue_under_test import assert_exits_silently
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy

GROUP = "workers"


def backend(url: str, **options: str) -> PubSubBackend:
    return PubSubBackend(Address(url + "".join(f"&{name}={value}" for name, value in options.items())))


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service takes ack deadlines of ten seconds and more. pstest is started with a minimum of one: tests wait for
    deadlines to end."""
    monkeypatch.setattr(module, "MIN_ACK_DEADLINE_S", 1)


@pytest.mark.usefixtures("short_windows")
def test_the_contract(pubsub_url: str) -> None:
    def site(**options: str) -> Callable[[], Site]:
        nowhere = f"pubsub://nowhere?endpoint=http://127.0.0.1:{free_port()}"
        return lambda: Site(backend=backend(pubsub_url, **options), unreachable=backend(nowhere, timeout="2s"))

    both = [(site(ordering=ordering), site(ordering=ordering, ack_window="4s")) for ordering in ("no", "yes")]
    side_by_side.run(*both, threads=20, delay=1.0, quiet=0.3)


@pytest.mark.chaos
@pytest.mark.usefixtures("short_windows")
@pytest.mark.parametrize("case", side_by_side.alone(skip=["both_ends_recover_from_a_restart"]), ids=str)
def test_the_contract_alone(case: BrokerCase, pubsub_url: str) -> None:
    """But for a restart: pstest keeps messages in memory."""
    with FaultProxy(port_of(pubsub_url)) as proxy:
        site = Site(backend=backend(proxy.through(pubsub_url), ack_window="2s"), cut=proxy.reset)
        case.run(site, delay=1.0, quiet=0.3, timeout=60.0)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_program_that_closes_nothing_exits_silently(pubsub_url: str, unique_name: str) -> None:
    assert_exits_silently(pubsub_url, unique_name)


# -- publishing


@pytest.fixture
async def pubsub(pubsub_url: str) -> AsyncIterator[PubSubBackend]:
    made = backend(pubsub_url)
    yield made
    await made.close()


async def receive_all(consumer: Consumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        page = await consumer.receive(1000, 60.0)
        bodies += [delivery.packet.body for delivery in page]
        assert all(await consumer.ack(page))
    return bodies


async def test_f44_only_the_packets_that_do_not_fit_are_refused(
    pubsub: PubSubBackend, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PUBLISH_BYTES", 2_000_000)  # the service takes 10 MB, and pstest 4 MiB
    await pubsub.declare(unique_name, group=GROUP)
    packets = [
        Packet(body=b"small"),
        Packet(body=b"x" * 2_000_001),
        Packet(body=b"headers", headers={f"h{number}": "x" * 1100 for number in range(30)}),
        Packet(body=b"y" * 1_500_000),
        Packet(body=b"z" * 1_500_000),
    ]
    outcomes = await pubsub.publisher().publish(unique_name, packets)
    assert [outcome is None for outcome in outcomes] == [True, False, False, True, True]
    assert "2000000" in str(outcomes[1])
    assert "headers" in str(outcomes[2])
    consumer = pubsub.consumer(unique_name, group=GROUP, prefetch=10)
    assert sorted(await receive_all(consumer, 3)) == sorted(packets[index].body for index in (0, 3, 4))
    await consumer.close()


async def test_more_than_fit_into_one_call_are_sent_in_several(pubsub: PubSubBackend, unique_name: str) -> None:
    await pubsub.declare(unique_name, group=GROUP)
    bodies = [b"%d" % number for number in range(1001)]
    outcomes = await pubsub.publisher().publish(unique_name, [Packet(body=body) for body in bodies])
    assert list(outcomes) == [None] * 1001
    consumer = pubsub.consumer(unique_name, group=GROUP, prefetch=2000)
    assert sorted(await receive_all(consumer, 1001)) == sorted(bodies)
    await consumer.close()


async def test_behind_a_failed_packet_none_of_its_key_is_sent(
    pubsub: PubSubBackend, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F43: what is sent again later would come after them."""
    await pubsub.declare(unique_name, group=GROUP)
    monkeypatch.setattr(module, "MAX_PUBLISH_MESSAGES", 2)
    call = pubsub.client().call

    async def lose_the_second_call(method: str, request: Any, **options: Any) -> Any:
        if method == "publish" and any(message.data == b"2" for message in request.messages):
            raise BrokerUnavailable("cut")
        return await call(method, request, **options)

    monkeypatch.setattr(pubsub.client(), "call", lose_the_second_call)
    packets = [Packet(body=b"%d" % number, ordering_key=key) for number, key in enumerate("aaabab")]
    outcomes = await pubsub.publisher().publish(unique_name, packets)
    assert [outcome is None for outcome in outcomes] == [True, True, False, False, False, False]
    consumer = pubsub.consumer(unique_name, group=GROUP, prefetch=10)
    assert sorted(await receive_all(consumer, 2)) == [b"0", b"1"]
    await consumer.close()


async def test_a_topic_that_is_not_there_is_named_with_what_creates_it(pubsub: PubSubBackend, unique_name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"declare\(queue\)"):
        await pubsub.publisher().publish(unique_name, [Packet(body=b"x")])


async def test_a_close_under_way_of_a_call_is_an_outage_to_it(pubsub: PubSubBackend, unique_name: str) -> None:
    """And no cancellation: a task that receives would end without a word."""
    await pubsub.declare(unique_name, group=GROUP)
    consumer = pubsub.consumer(unique_name, group=GROUP, prefetch=10)
    receiving = asyncio.create_task(consumer.receive(1, 60.0))
    await asyncio.sleep(0.2)
    await pubsub.close()
    with pytest.raises(BrokerUnavailable, match="closed during a call"):
        await receiving
    assert list(await consumer.receive(1, 0.0)) == [], "it connects again"
    await consumer.close()


# -- dead letters


async def test_what_pubsub_gives_up_on_by_itself_is_among_the_dead_letters(
    pubsub_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DELIVERY_ATTEMPTS", 5)
    pubsub = backend(pubsub_url)
    await pubsub.declare(unique_name, group=GROUP)
    await pubsub.publisher().publish(unique_name, [Packet(body=b"bad", id="id-1")])
    consumer = pubsub.consumer(unique_name, group=GROUP, prefetch=10)
    for attempt in range(1, 6):
        (delivery,) = await consumer.receive(1, 60.0)
        assert delivery.attempt == attempt
        assert await consumer.nack([delivery]) == [True]
    dead_letters = pubsub.dead_letters(unique_name, group=GROUP)
    while not await dead_letters.count():
        assert list(await consumer.receive(1, 0.1)) == []
    ((letter,), _) = await dead_letters.browse(10)
    assert (letter.packet.body, letter.packet.id) == (b"bad", "id-1")
    await dead_letters.close()
    await consumer.close()
    await pubsub.close()


# -- what `check` refuses

WRONG = {
    "another topic": ({"topic": "other"}, "declare the queue again"),
    "a filter": ({"filter": 'attributes.kind = "a"'}, "drops messages"),
    "ordering": ({"enable_message_ordering": True}, "set ordering in the URL"),
    "exactly once": ({"enable_exactly_once_delivery": True}, "set exactly_once in the URL"),
    "a short ack deadline": ({"ack_deadline_seconds": 10}, "--ack-deadline=30"),
    "no dead-letter policy": ({"dead_letter_policy": None}, "counts no deliveries"),
    "few attempts": ({"dead_letter_policy": {"max_delivery_attempts": 5}}, "--max-delivery-attempts=100"),
    "push": ({"push_config": {"push_endpoint": "https://example.org/push"}}, "--clear-push-config"),
}


@pytest.mark.parametrize("fault", WRONG)
async def test_a_subscription_that_cannot_keep_the_promise_is_refused(
    pubsub: PubSubBackend, unique_name: str, fault: str
) -> None:
    changed, remedy = WRONG[fault]
    client = pubsub.client()
    await pubsub.declare(unique_name, group=GROUP)
    await pubsub.check(unique_name, group=GROUP)
    name = pubsub.subscription(unique_name, GROUP)
    policy = {"dead_letter_topic": pubsub.dead_letter_topic(unique_name, GROUP), "max_delivery_attempts": 100}
    fields: dict[str, Any] = {
        "name": name,
        "topic": pubsub.topic(unique_name),
        "ack_deadline_seconds": 30,
        "dead_letter_policy": policy,
    }
    fields |= changed
    if fields["dead_letter_policy"]:
        fields["dead_letter_policy"] = policy | fields["dead_letter_policy"]
    if "topic" in changed:
        fields["topic"] = pubsub.topic(f"{unique_name}-other")
        await client.call("create_topic", {"name": fields["topic"]})
    await client.call("delete_subscription", {"subscription": name})
    await client.call("create_subscription", fields)
    with pytest.raises(ConfigurationError) as refused:
        await pubsub.check(unique_name, group=GROUP)
    assert name in str(refused.value)
    assert remedy in str(refused.value)


async def test_a_queue_that_was_not_declared_is_refused(pubsub: PubSubBackend, unique_name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"declare\(queue\)"):
        await pubsub.check(unique_name, group=GROUP)


# -- the URL


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("pubsub://", "id of a project"),
        ("pubsub://Shop", "id of a project"),
        ("pubsub://my-shop/orders", "id of a project"),
        ("pubsub://ann:secret@my-shop", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("pubsub://my-shop?endpoint=127.0.0.1:8085", "must look like"),
        ("pubsub://my-shop?endpoint=http://127.0.0.1:8085&tls=yes", "leave tls out"),
        ("pubsub://my-shop?verify=no", "name a ca_file"),
        ("pubsub://my-shop?ca_file=/nowhere.pem", "ca_file"),
        ("pubsub://my-shop?ack_window=5s", "between 10s and 10m"),
        ("pubsub://my-shop?retention=60d", "between 10m and 31d"),
        ("pubsub://my-shop?orderly=yes", "has no option orderly"),
    ],
)
def test_a_url_that_means_nothing_is_refused(url: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words) as refused:
        PubSubBackend(Address(url))
    assert "secret" not in str(refused.value)


def test_googles_variable_names_an_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:8085")
    assert repr(backend("pubsub://my-shop")) == "pubsub://my-shop at 127.0.0.1:8085"
    assert repr(backend("pubsub://my-shop?endpoint=https://europe-west3-pubsub.googleapis.com")).endswith(
        "at europe-west3-pubsub.googleapis.com:443"
    )


@pytest.mark.parametrize("queue", ["1st", "goog-orders", "a:b", "a/b"])
def test_a_name_that_pubsub_does_not_take_is_refused(queue: str) -> None:
    with pytest.raises(InvalidOption, match="cannot be the id"):
        backend("pubsub://my-shop").topic(queue)


# -- the whole way


def test_a_failed_message_is_parked_redriven_and_done_once(pubsub_url: str, unique_name: str, tmp_path: Path) -> None:
    """F51: a redrive runs again what failed, and only that."""
    broker, store = eo.connect_broker(pubsub_url), eo.connect(f"sqlite:///{tmp_path}/store.db")
    broker.declare(unique_name, group=GROUP)
    broker.publish(unique_name, [eo.Message(type="order", data=order) for order in ("good", "bad")])
    ended: list[str] = []
    done: list[str] = []
    is_repaired = False
    worker = eo.Worker(broker, store=store, name=GROUP)

    @worker.handler(unique_name, retention="30d", retry=eo.Retry(max_attempts=1))
    def handle(message: eo.Message[str]) -> None:
        if message.data == "bad" and not is_repaired:
            raise ValueError("bad")
        done.append(message.data)

    def stop_after_two(event: eo.Event) -> None:
        if event.kind in ("completed", "dead_lettered"):
            ended.append(event.kind)
            if len(ended) == 2:
                worker.stop()

    store.add_hook(stop_after_two)
    worker.run()
    assert sorted(ended) == ["completed", "dead_lettered"]
    dead_letters = eo.DeadLetterQueue(worker, unique_name)
    assert [dead.cause.error for dead in dead_letters.list()] == ["builtins:ValueError"]
    is_repaired = True
    ended[:] = ["completed"]
    assert [redrive.sent for redrive in dead_letters.redrive(new_generation=True)] == [True]
    worker.run()
    assert done == ["good", "bad"]
    assert dead_letters.count() == 0
    broker.close()

"""How a broker is opened and published to, in both colours, and what a wrong address is told."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.broker import MemoryBrokerBackend
from effectonce.broker import SCHEMES
from effectonce.contracts import Packet
from effectonce.envelopes import CloudEvents, Raw
from effectonce.testing import ManualClock
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy

SECRET = "c4nary-pa55word"


def received(broker: eo.Broker, queue: str, count: int = 10) -> list[Any]:
    """The data of what is in ``queue``."""

    async def take() -> list[Any]:
        consumer = broker.backend.consumer(queue, group="g", prefetch=100)
        found = await consumer.receive(count, 0.0)
        await consumer.ack(found)
        await consumer.close()
        return [CloudEvents().decode(delivery.packet).data for delivery in found]

    return asyncio.run(take())


# -- delays


@pytest.mark.parametrize(
    ("url", "delay", "reason"),
    [
        (
            "kafka://localhost:9092",
            "1s",
            r"not keep a message back \(a partition is read in the order of its records\)",
        ),
        ("sqs://?region=eu-west-1", "901s", "only up to 15m"),
        ("sqs://?region=eu-west-1&fifo=yes", "1s", "a FIFO queue delays all of its messages, or none"),
        ("redis+babelqueue://localhost", "1s", "it has no delayed messages"),
        ("amqp://localhost", "50d", "only up to 49.7d"),
        ("nats://localhost?retention=limits&max_age=1h", "61m", "only up to 1h"),
    ],
)
def test_a_delay_that_a_broker_cannot_keep_is_refused_with_the_limit_and_the_remedy(
    url: str, delay: str, reason: str
) -> None:
    broker = eo.connect_broker(url)
    with pytest.raises(eo.InvalidOption, match=rf"{reason}.*outbox\.send\(conn, message, delay="):
        broker.publish("orders", eo.Message(data=1), delay=delay)


def test_a_message_with_an_ordering_key_cannot_be_delayed() -> None:
    broker = eo.connect_broker("memory://")
    with pytest.raises(eo.InvalidOption, match="ordering key k"):
        broker.publish("orders", [eo.Message(data=1), eo.Message(data=2, ordering_key="k")], delay="1m")
    assert received(broker, "orders") == []


async def test_a_published_delay_is_kept_by_the_broker() -> None:
    clock = ManualClock()
    broker = eo.Broker(MemoryBrokerBackend(clock=clock))
    consumer = broker.backend.consumer("orders", group="g", prefetch=10)
    await broker.apublish("orders", [eo.Message(data=1), eo.Message(data=2)], delay="10m")
    clock.advance("599s")
    assert not await consumer.receive(10, 0.0)
    clock.advance("1s")
    assert len(await consumer.receive(10, 0.0)) == 2


# -- addresses


@pytest.mark.parametrize(
    ("url", "error", "hint"),
    [
        ("rabbit://localhost", eo.UnknownScheme, "amqp://"),
        ("localhost:5672", eo.UnknownScheme, "the schemes are"),
        ("", eo.UnknownScheme, "there is no broker for"),
        ("postgresql://localhost/db", eo.UnknownScheme, "redis://"),
        ("memory://shop/orders", eo.InvalidOption, "a name and no path"),
        ("memory://shop?speed=11", eo.InvalidOption, "ack_window"),
        ("memory://shop?ack_window=soon", eo.InvalidOption, "ack_window"),
        (f"redis://u:{SECRET}@localhost:port/0", eo.InvalidOption, "cannot be parsed"),
    ],
)
def test_a_wrong_url_is_refused_at_once_with_the_remedy(url: str, error: type[Exception], hint: str) -> None:
    with pytest.raises(error, match=hint) as caught:
        eo.connect_broker(url)
    assert SECRET not in str(caught.value)


def test_connecting_opens_nothing_and_an_unreachable_broker_is_unavailable() -> None:
    """F66: it says where, without the password."""
    url = f"redis://u:{SECRET}@127.0.0.1:{free_port()}/0"
    with eo.connect_broker(url) as broker:
        with pytest.raises(eo.BrokerUnavailable) as caught:
            broker.publish("orders", eo.Message(data=1))
        assert "127.0.0.1" in str(caught.value)
        assert SECRET not in f"{broker!r} {caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize("url", ["redis://localhost", "redis+babelqueue://localhost"])
def test_a_missing_driver_names_the_extra(url: str) -> None:
    program = textwrap.dedent(
        f"""
        from importlib.machinery import PathFinder
        find = PathFinder.find_spec
        PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] == "hiredis" else find(name, *rest)
        import effectonce as eo
        try:
            eo.connect_broker({url!r})
        except eo.MissingDriver as error:
            print(error.code, error)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "missing-driver" in done.stdout, done.stderr
    assert "pip install 'effectonce[redis]'" in done.stdout


def test_every_scheme_has_a_module_with_that_backend() -> None:
    for module, name in SCHEMES.values():
        source = Path(eo.__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
        assert f"class {name}" in source.read_text(), name


def test_a_broker_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint("carrier-pigeon", f"{__name__}:Pigeon", "effectonce.brokers")
    monkeypatch.setattr(type(point), "load", lambda self: lambda address: MemoryBrokerBackend())
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == "effectonce.brokers" else [])
    assert eo.connect_broker("carrier-pigeon://roof").capabilities.name == "memory"


def test_without_a_url_the_environment_names_the_broker_on_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with eo.connect_broker() as broker:
        monkeypatch.delenv("EFFECTONCE_BROKER", raising=False)
        assert "EFFECTONCE_BROKER" in repr(broker)
        with pytest.raises(eo.ConfigurationError, match="EFFECTONCE_BROKER"):
            broker.publish("orders", eo.Message(data=1))
        monkeypatch.setenv("EFFECTONCE_BROKER", f"sqlite:///{tmp_path}/queue.db")
        broker.publish("orders", eo.Message(data=1))
        assert received(broker, "orders") == [1]


# -- the memory broker's names


def test_one_name_is_one_broker_in_this_process_and_no_name_is_ones_own() -> None:
    one, other, alone = (
        eo.connect_broker(url) for url in ("memory://shared-name", "memory://shared-name", "memory://")
    )
    one.publish("orders", eo.Message(data="both"))
    alone.publish("orders", eo.Message(data="mine"))
    assert received(other, "orders") == ["both"]
    assert received(eo.connect_broker("memory://"), "orders") == []
    assert repr(one) == "Broker(memory://shared-name)"
    for broker in (one, alone):
        broker.close()


# -- publishing


def test_sync_code_publishes_one_or_several() -> None:
    with eo.connect_broker("memory://") as broker:
        broker.publish("orders", eo.Message(data=0))
        broker.publish("orders", [eo.Message(data=n) for n in (1, 2, 3)])
        broker.publish("orders", [])
        assert received(broker, "orders") == [0, 1, 2, 3]


async def test_async_code_publishes_with_apublish() -> None:
    async with eo.connect_broker("memory://") as broker:
        await broker.apublish("orders", eo.Message(data=0))
        await asyncio.gather(*(broker.apublish("orders", eo.Message(data=n)) for n in (1, 2)))
        consumer = broker.backend.consumer("orders", group="g", prefetch=10)
        assert len(await consumer.receive(10, 0.0)) == 3


async def test_a_sync_call_inside_a_running_loop_is_refused() -> None:
    """F72: it would block everything that the loop runs."""
    broker = eo.connect_broker("memory://")
    with pytest.raises(eo.SyncAsyncMismatch, match="apublish"):
        broker.publish("orders", eo.Message(data=1))
    await asyncio.to_thread(broker.publish, "orders", eo.Message(data=1))
    with pytest.raises(eo.SyncAsyncMismatch, match="aclose"):
        broker.close()
    await asyncio.to_thread(broker.close)


def test_threads_publish_through_one_handle() -> None:
    with eo.connect_broker("memory://") as broker:
        threads = [
            threading.Thread(target=lambda n=n: broker.publish("orders", [eo.Message(data=n)] * 5)) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(received(broker, "orders", 100)) == sorted(list(range(8)) * 5)


def test_the_envelope_is_cloudevents_unless_told() -> None:
    with eo.connect_broker("memory://", envelope=Raw()) as broker:
        broker.publish("a", eo.Message(data={"n": 1}))
        broker.publish("b", eo.Message(data={"n": 1}), envelope=CloudEvents())
        assert isinstance(broker.envelope, Raw)
        assert received(broker, "b") == [{"n": 1}]


class Full(MemoryBrokerBackend):
    """Refuses what is too large, as a broker does."""

    def publisher(self) -> Any:
        inner = super().publisher()

        class Refusing:
            async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
                assert len(packets) <= 100
                fine = [packet for packet in packets if len(packet.body) < 1000]
                await inner.publish(queue, fine)
                return [None if packet in fine else eo.ConfigurationError("too large") for packet in packets]

            async def close(self) -> None:
                await inner.close()

        return Refusing()


def test_a_refused_message_raises_and_says_which_were_confirmed() -> None:
    """F44."""
    with eo.Broker(Full()) as broker:
        large = eo.Message(data="x" * 2000, id="the-large-one", ordering_key="k")
        behind = eo.Message(data="behind", ordering_key="k")
        with pytest.raises(eo.ConfigurationError, match="too large") as caught:
            broker.publish("orders", [large, *(eo.Message(data=n) for n in range(140)), behind])
        assert "the-large-one" in caught.value.__notes__[-1]
        found = received(broker, "orders", 100) + received(broker, "orders", 100)
        assert found == list(range(140))  # and what stands behind the refused one was not sent
        with pytest.raises(eo.ConfigurationError):
            broker.publish("orders", large)


# -- connections


@pytest.fixture
def proxied(redis_url: str, unique_name: str) -> Any:
    port = int(redis_url.removeprefix("redis://").partition("/")[0].rpartition(":")[2])
    with FaultProxy(port) as proxy:
        broker = eo.connect_broker(f"{proxy.through(redis_url)}?namespace={unique_name}")
        yield broker, proxy
        broker.close()


def test_sync_calls_keep_their_connection(proxied: tuple[eo.Broker, FaultProxy]) -> None:
    broker, proxy = proxied
    for n in range(5):
        broker.publish("orders", eo.Message(data=n))
        assert proxy.connections == 1
    broker.close()
    assert received(broker, "orders") == [0, 1, 2, 3, 4]


def test_a_connection_that_died_while_idle_is_not_met_by_the_caller(proxied: tuple[eo.Broker, FaultProxy]) -> None:
    """F59: the same message, with the same id, on a new connection."""
    broker, proxy = proxied
    broker.publish("orders", eo.Message(data=0))
    proxy.reset()
    broker.publish("orders", eo.Message(data=1))
    assert received(broker, "orders") == [0, 1]


def test_a_reply_that_is_lost_sends_the_same_id_again(proxied: tuple[eo.Broker, FaultProxy]) -> None:
    """F42: at least once, recognised by its id."""
    broker, proxy = proxied
    broker.publish("orders", eo.Message(data=0))
    proxy.drop_reply(to=b"XADD")
    broker.publish("orders", eo.Message(data=1, id="twice"))
    assert received(broker, "orders") == [0, 1, 1]


def test_a_broker_that_is_gone_is_told(proxied: tuple[eo.Broker, FaultProxy]) -> None:
    broker, proxy = proxied
    broker.publish("orders", eo.Message(data=0))
    proxy.refuse = True
    proxy.reset()
    with pytest.raises(eo.BrokerUnavailable):
        broker.publish("orders", eo.Message(data=1))
    proxy.heal()
    broker.publish("orders", eo.Message(data=2))


def test_a_closed_handle_opens_again_when_used() -> None:
    broker = eo.connect_broker("memory://")
    broker.publish("orders", eo.Message(data=0))
    broker.close()
    broker.close()
    broker.publish("orders", eo.Message(data=1))
    broker.close()
    assert received(broker, "orders") == [0, 1]


def test_a_program_ends_soon_although_its_broker_is_silent_and_a_thread_waits_for_it() -> None:
    """What is left open is closed at the end, within bounds: of time, and of what others do with it."""
    program = textwrap.dedent(
        """
        import asyncio, threading
        import effectonce as eo
        from effectonce.backends.memory.broker import MemoryBrokerBackend

        class Silent(MemoryBrokerBackend):
            async def close(self):
                print("closing", flush=True)
                await asyncio.sleep(600)

            async def check(self, queue, *, group):
                checking.set()
                await asyncio.sleep(600)

        checking = threading.Event()
        silent, busy = eo.Broker(Silent()), eo.Broker(Silent())
        silent.publish("orders", eo.Message(data=0))
        threading.Thread(target=busy.check, args=("orders",), daemon=True).start()
        checking.wait()
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closing\n", "")


def test_loops_come_and_go(redis_url: str, unique_name: str) -> None:
    """What belongs to a loop is gone with it; the next one connects anew."""
    broker = eo.connect_broker(f"{redis_url}?namespace={unique_name}")
    for n in range(3):
        asyncio.run(broker.apublish("orders", eo.Message(data=n)))
    assert received(broker, "orders") == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_connections_of_its_own(proxied: tuple[eo.Broker, FaultProxy]) -> None:
    broker, _ = proxied
    broker.publish("orders", eo.Message(data="parent"))
    child = os.fork()
    if child == 0:
        try:
            broker.publish("orders", eo.Message(data="child"))
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    broker.publish("orders", eo.Message(data="parent again"))
    assert received(broker, "orders") == ["parent", "child", "parent again"]


@pytest.mark.parametrize("queue", ["", " ", "a b", "a\nb", "{x}", "ü", "-a", "x" * 201, "a;DROP TABLE x", "*"])
def test_a_queue_name_is_a_plain_name(queue: str) -> None:
    """F61."""
    with eo.connect_broker("memory://") as broker, pytest.raises(eo.InvalidOption, match="queue"):
        broker.publish(queue, eo.Message(data=1))


def test_people_check_and_declare(tmp_path: Path) -> None:
    with eo.connect_broker(f"sqlite:///{tmp_path}/queue.db") as broker:
        broker.declare("orders")
        broker.check("orders")
        assert (tmp_path / "queue.db").exists()

"""Faults: broken connections, restarts, wrong addresses and passwords, and resources that leak."""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from effectonce.contracts import BrokerBackend, Consumer, Delivery
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.testing.suites.expectations import expect, expect_no_leak, require, skip_unless

from .harness import BrokerHarness, bodies_of, make_packet

# -- broken connections


async def both_ends_recover_from_a_broken_connection(h: BrokerHarness) -> None:
    """F59."""
    await _expect_recovery(h, skip_unless(h.site.cut, "a way to cut connections"))


async def both_ends_recover_from_a_restart(h: BrokerHarness) -> None:
    skip_unless(h.capabilities.durable, "a durable server")
    await _expect_recovery(h, skip_unless(h.site.restart, "a server that can be restarted"))


async def _expect_recovery(h: BrokerHarness, fault: Callable[[], Any]) -> None:
    """Require that messages confirmed before and after the fault are delivered, that messages acked before it are not,
    and that nothing but `BrokerUnavailable` is raised."""
    publisher, consumer = h.publisher(), await h.consumer()
    await h.publish(b"acked", publisher=publisher)
    await consumer.ack([await h.receive_one(consumer)])
    await consumer.flush()
    await h.publish(b"held", publisher=publisher)
    held = await h.receive_one(consumer)
    fault()
    deadline = time.monotonic() + h.timeout
    packet = make_packet(b"after")
    while True:
        try:
            (outcome,) = await publisher.publish(h.queue, [packet])
            require(outcome is None, f"a publish after the fault was refused: {outcome!r}")
            break
        except BrokerUnavailable:
            require(time.monotonic() < deadline, "the publisher did not recover")
    for settle in (consumer.extend([held], 0.1), consumer.nack([held])):
        with suppress(BrokerUnavailable):
            await settle
    received = await _receive_until(h, consumer, {b"held", b"after"})
    require(b"acked" not in received, "what was acked before the fault was delivered again")


async def deliveries_of_a_broken_connection_are_redelivered(h: BrokerHarness) -> None:
    """A broken connection stands for a consumer that died. A broker with an ack window redelivers at its end."""
    cut = skip_unless(h.site.cut, "a way to cut connections")
    await h.make_deliveries(b"0", b"1")
    cut()
    received = await _receive_until(h, await h.consumer(), {b"0", b"1"})
    expect(received, {b"0", b"1"}, "the bodies that the next owner received")


async def _receive_until(h: BrokerHarness, consumer: Consumer, bodies: set[bytes]) -> set[bytes]:
    """Receive and ack until all of ``bodies`` were delivered, even if the broker is unavailable at first."""
    received: set[bytes] = set()
    deadline = time.monotonic() + h.redelivery_timeout
    while not received >= bodies:
        require(time.monotonic() < deadline, f"only {received} were delivered after the fault")
        with suppress(BrokerUnavailable):
            page: Sequence[Delivery] = await consumer.receive(10, 0.3)
            await consumer.ack(page)
            await consumer.flush()
            received.update(bodies_of(page))
    return received


# -- wrong addresses


async def an_unreachable_broker_is_unavailable(h: BrokerHarness) -> None:
    await _expect_errors(skip_unless(h.site.unreachable, "an address where no server listens"), BrokerUnavailable)


async def wrong_credentials_are_a_configuration_error(h: BrokerHarness) -> None:
    """They raise at once, and are not retried like an outage. The password is never printed (F66)."""
    backend, secret = skip_unless(h.site.locked, "a server that wants a password"), h.site.secret
    printed = await _expect_errors(backend, ConfigurationError)
    require(bool(secret) and secret not in printed, "the password of a failed call was printed")


async def _expect_errors(backend: BrokerBackend, kind: type[Exception]) -> str:
    """Require that publishing and receiving raise ``kind``. Returns all that a program may print about it."""
    publisher, consumer = backend.publisher(), backend.consumer("queue", group="g", prefetch=1)
    errors = [
        await _expect_error(kind, publisher.publish("queue", [make_packet()])),
        await _expect_error(kind, consumer.receive(1, 0.1)),
    ]
    printed = "".join(line for error in errors for line in traceback.format_exception(error))
    printed += repr((backend, publisher, consumer))
    for opened in (publisher, consumer, backend):
        await opened.close()
    return printed


async def _expect_error(kind: type[Exception], work: Awaitable[object]) -> Exception:
    try:
        answer = await work
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} was raised ({error}), not {kind.__name__}") from error
    raise AssertionError(f"{answer!r} was answered, and {kind.__name__} was not raised")


# -- resources


async def a_closed_backend_leaves_nothing_open(h: BrokerHarness) -> None:
    backend = h.backend

    async def open_use_and_close() -> None:
        for _ in range(3):
            publisher, dead_letters = backend.publisher(), backend.dead_letters(h.queue, group=h.group)
            consumer = backend.consumer(h.queue, group=h.group, prefetch=10)
            await h.publish(b"{}", publisher=publisher)
            await consumer.ack(await h.receive(consumer, 1))
            await dead_letters.count()
            for opened in (publisher, dead_letters, consumer):
                await opened.close()

    await expect_no_leak(open_use_and_close, h.sleep, attempts=40 if h.clock is None else 1)


async def a_backend_says_where_it_is(h: BrokerHarness) -> None:
    require(bool(repr(h.backend)) and "object at" not in repr(h.backend), "the backend's repr is not its address")

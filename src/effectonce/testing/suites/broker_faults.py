"""Connections that break, servers that restart, addresses that are wrong, and secrets that are never printed."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from effectonce.contracts import Consumer
from effectonce.errors import BrokerUnavailable, ConfigurationError

from .broker_harness import BrokerHarness, a_packet, bodies, broker_case
from .sentences import equal, holds


@broker_case
async def both_ends_recover_from_a_broken_connection(h: BrokerHarness) -> None:
    """F59."""
    h.needs(h.site.cut is not None, "a way to cut connections")
    await _recovers(h, h.site.cut)  # type: ignore[arg-type]


@broker_case
async def both_ends_recover_from_a_restart(h: BrokerHarness) -> None:
    h.needs(h.site.restart is not None and h.capabilities.durable, "a durable server that can be restarted")
    await _recovers(h, h.site.restart)  # type: ignore[arg-type]


async def _recovers(h: BrokerHarness, fault: Callable[[], Any]) -> None:
    """What was confirmed before and after is delivered; what was acked before is not; nothing but `BrokerUnavailable`
    gets out."""
    publisher, consumer = h.publisher(), await h.consumer()
    await h.publish(b"acked", publisher=publisher)
    await consumer.ack([await h.one(consumer)])
    await consumer.flush()
    await h.publish(b"held", publisher=publisher)
    held = await h.one(consumer)
    fault()
    deadline = time.monotonic() + h.timeout
    sent = a_packet(b"after")
    while True:
        try:
            (outcome,) = await publisher.publish(h.queue, [sent])
            holds(outcome is None, f"a publish after the fault was refused: {outcome!r}")
            break
        except BrokerUnavailable:
            holds(time.monotonic() < deadline, "the publisher did not recover")
    for settle in (consumer.extend([held], 0.1), consumer.nack([held])):
        try:
            await settle
        except BrokerUnavailable:
            pass
    found: set[bytes] = set()
    deadline = time.monotonic() + h.afterwards
    while not found >= {b"held", b"after"}:
        holds(time.monotonic() < deadline, f"only {found} came after the fault")
        found |= set(bodies(await _insist(consumer)))
    holds(b"acked" not in found, "what was acked before the fault came again")


async def _insist(consumer: Consumer) -> Any:
    """What one receive gives, and acks it; nothing, where the broker could not be reached."""
    try:
        page = await consumer.receive(10, 0.3)
        await consumer.ack(page)
        await consumer.flush()
        return page
    except BrokerUnavailable:
        return []


@broker_case
async def a_connection_that_breaks_gives_back_what_it_held(h: BrokerHarness) -> None:
    """A consumer that dies is a connection that breaks; where there is a window, that ends too."""
    h.needs(h.site.cut is not None, "a way to cut connections")
    await h.publish(b"0", b"1")
    dead = await h.consumer()
    await h.collect(dead, 2)
    h.site.cut()  # type: ignore[misc]
    heir = await h.consumer()
    found: set[bytes] = set()
    deadline = time.monotonic() + h.afterwards
    while found != {b"0", b"1"}:
        holds(time.monotonic() < deadline, f"only {found} came to the heir")
        found |= set(bodies(await _insist(heir)))


# -- wrong addresses


@broker_case
async def an_unreachable_broker_is_unavailable(h: BrokerHarness) -> None:
    backend = h.site.unreachable
    if backend is None:
        return h.needs(False, "an address where nobody listens")
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=1)
    await _raises(BrokerUnavailable, publisher.publish("q", [a_packet()]), "a publish")
    await _raises(BrokerUnavailable, consumer.receive(1, 0.1), "a receive")
    await publisher.close()
    await consumer.close()
    await backend.close()
    return None


@broker_case
async def wrong_credentials_are_a_configuration_error(h: BrokerHarness) -> None:
    """At once, and not retried like an outage; and the password is in nothing that is printed (F66)."""
    backend, secret = h.site.locked, h.site.secret
    if backend is None:
        return h.needs(False, "a server that wants a password")
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=1)
    for what, work in (("publish", publisher.publish("q", [a_packet()])), ("receive", consumer.receive(1, 0.1))):
        error = await _raises(ConfigurationError, work, f"a {what}")
        printed = "".join(traceback.format_exception(error)) + repr(backend) + repr(publisher) + repr(consumer)
        holds(bool(secret) and secret not in printed, f"the password of a failed {what} was printed")
    await publisher.close()
    await consumer.close()
    await backend.close()
    return None


async def _raises(kind: type[Exception], work: Any, what: str) -> BaseException:
    try:
        answer = await work
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__} ({error}), not {kind.__name__}") from error
    raise AssertionError(f"{what} answered {answer!r} and did not raise {kind.__name__}")


# -- what is left


@broker_case
async def what_is_closed_leaves_nothing_open(h: BrokerHarness) -> None:
    """Two rounds: what the first leaves may be kept for reuse, what the second adds is a leak."""
    h.needs(sys.platform == "linux", "a system that lists open files in /proc")
    await h.declare()
    await _open_and_close(h)
    before = len(os.listdir("/proc/self/fd"))
    await _open_and_close(h)
    for _ in range(40):
        gc.collect()
        left = len(os.listdir("/proc/self/fd")) - before
        if left < 3:
            return
        await h.sleep(0.05)
        if h.clock is not None:
            break
    raise AssertionError(f"nine things were used and closed, and {left} more files are open than before")


async def _open_and_close(h: BrokerHarness) -> None:
    backend = h.backend
    for _ in range(3):
        publisher, dead = backend.publisher(), backend.dead_letters(h.queue, group=h.group)
        consumer = backend.consumer(h.queue, group=h.group, prefetch=10)
        equal(list(await publisher.publish(h.queue, [a_packet()])), [None], "what `publish` answered")
        await consumer.ack(await h.collect(consumer, 1))
        await dead.count()
        for opened in (publisher, dead, consumer):
            await opened.close()


@broker_case
async def a_backend_says_where_it_is(h: BrokerHarness) -> None:
    holds(bool(repr(h.backend)) and "object at" not in repr(h.backend), "the backend's repr is not its address")

"""Azure Service Bus, through Microsoft's SDK: peek-lock, duplicate detection by MessageId, native dead letters.

**Experimental: this was never run against the service itself**, nor against Microsoft's emulator, which exists only as
a container. Tests use the real SDK, over AMQP and HTTP, against servers of ours that do what the service is documented
to do (``tests/harness/servicebus.py``, ``tests/backends/servicebus/test_administration.py``).

A delivery is ours while its lock lasts, which is the ack window; see `visibility_timeout`. The service cannot delay a
message that is given back. So a copy of it is scheduled, and then it is completed: a crash in between doubles it and
loses nothing. Only sessions keep an order; see `sessions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from effectonce.backends.common.packets import raise_if_all_unavailable
from effectonce.contracts import BrokerBackend, BrokerCapabilities, Consumer, Packet
from effectonce.errors import BrokerUnavailable, InvalidOption
from effectonce.values.durations import micros
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, flag

from .client import ServiceBusLink, ServiceBusNamespace, ServiceBusRefusal, parse_namespace
from .consumer import ServiceBusConsumer
from .dead_letters import ServiceBusDeadLetters
from .messages import make_message
from .queues import QueueSettings, check_queue, declare_queue
from .sessions import ServiceBusSessionsConsumer

DAY_S: Final = 86400.0
#: The longest lock duration that a queue can have.
MAX_LOCK_S: Final = 300


class ServiceBusBackend(BrokerBackend):
    """Experimental: never run against the service itself. ``servicebus://KeyName:Key@name.servicebus.windows.net``,
    with the key percent-encoded. Without a key, ``azure-identity`` finds the machine's identity.

    Options: ``ack_window`` (1m: the queue's lock duration, at most 5m), ``dedup_window`` (10m: the queue's duplicate
    detection; ``none``: it has none), ``sessions`` (no; yes: all queues of this broker have sessions, by which an
    ordering key keeps its order), ``retention`` (14d: the queue's default time to live), ``max_body`` (240 KB; more in
    the premium tier), ``timeout`` (30s), ``ca_file`` (the authorities to trust, in place of the SDK's), ``emulator``
    (yes: plain AMQP; queues are as the emulator is configured).
    """

    def __init__(self, address: Address) -> None:
        self._namespace = parse_namespace(address)
        default_dedup_window: float | None = 600.0
        self._settings = QueueSettings(
            lock=address.seconds("ack_window", 60.0),
            dedup=address.take("dedup_window", _parse_dedup_window, default_dedup_window),
            retention=address.seconds("retention", 14 * DAY_S),
            sessions=address.take("sessions", flag, False),
        )
        max_body = address.take("max_body", int, 240_000)
        address.refuse_unknown_options()
        if self._settings.lock > MAX_LOCK_S:
            raise InvalidOption("ack_window of servicebus:// is at most 5m; it is extended while a handler runs")
        self.capabilities = BrokerCapabilities(
            name="servicebus",
            experimental=True,
            ordering="key" if self._settings.sessions else "none",
            ack_window_s=self._settings.lock,
            extends=True,
            counts_attempts=True,
            redelivery_horizon_s=self._settings.retention,
            dedup_window_s=self._settings.dedup,
            max_delay_s=None,
            max_body=max_body,
        )

    def publisher(self) -> ServiceBusPublisher:
        return ServiceBusPublisher(self._namespace, self._settings.sessions)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        kind = ServiceBusSessionsConsumer if self._settings.sessions else ServiceBusConsumer
        return kind(self._namespace, require_name(queue), prefetch, self._settings.lock)

    def dead_letters(self, queue: str, *, group: str) -> ServiceBusDeadLetters:
        return ServiceBusDeadLetters(self._namespace, require_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        await declare_queue(self._namespace, require_name(queue), self._settings)

    async def check(self, queue: str, *, group: str) -> None:
        await check_queue(self._namespace, require_name(queue), self._settings)

    def __repr__(self) -> str:
        return str(self._namespace)


def _parse_dedup_window(text: str) -> float | None:
    return None if text == "none" else micros(text, "dedup_window") / 1e6


class ServiceBusPublisher:
    """See `contracts.Publisher`. Messages of one batch of the SDK arrive together, or not at all."""

    def __init__(self, namespace: ServiceBusNamespace, sessions: bool) -> None:
        self._namespace = namespace
        self._sessions = sessions
        self._links: dict[str, ServiceBusLink] = {}

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        link = self._links.get(queue)
        if link is None:
            name = require_name(queue)
            link = self._links[queue] = ServiceBusLink(
                self._namespace, queue, lambda client: client.get_queue_sender(name)
            )
        outcomes: list[Exception | None] = [None] * len(packets)
        batch: Any = None
        session: str | None = None
        batched: list[int] = []  # the indexes of the packets in the batch

        async def send_batch() -> None:
            nonlocal batch
            try:
                await link.use(lambda sender: sender.send_messages(batch))
            except (BrokerUnavailable, ServiceBusRefusal) as error:
                for index in batched:
                    outcomes[index] = error
            batch = None
            batched.clear()

        for index, packet in enumerate(packets):
            message = make_message(packet, sessions=self._sessions)
            if batched and message.session_id != session:  # a batch goes to one session
                await send_batch()
            session = message.session_id
            while True:
                batch = batch or await link.use(lambda sender: sender.create_message_batch())
                try:
                    batch.add_message(message)
                    batched.append(index)
                    break
                except ValueError as error:  # the batch has no room for it
                    if not batched:
                        outcomes[index] = ServiceBusRefusal(
                            f"the message is too large for a queue of {self._namespace}: {error}"
                        )
                        break
                    await send_batch()
        if batched:
            await send_batch()
        raise_if_all_unavailable(outcomes)
        return outcomes

    async def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()

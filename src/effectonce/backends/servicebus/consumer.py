"""Consuming from Azure Service Bus: settling a delivery, and the consumer for queues without sessions."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from effectonce.backends.common.visibility_timeout import HeldDelivery, PollingConsumer
from effectonce.contracts import Consumer, Delivery
from effectonce.errors import BrokerUnavailable

from .client import LockLost, ServiceBusLink, ServiceBusNamespace
from .messages import OWN_REASON, make_message, read_packet, write_description

#: How long one receive may take. Settlements wait for it, since calls take turns on the receiver.
MAX_POLL_S: Final = 0.2


class SettlingConsumer(Consumer):
    """What consumers with and without sessions have in common: settling the deliveries that they own."""

    def __init__(self, namespace: ServiceBusNamespace, queue: str) -> None:
        self._queue = queue
        self._copies = ServiceBusLink(namespace, queue, lambda client: client.get_queue_sender(queue))

    @abstractmethod
    async def _settle(self, delivery: Delivery, operation: str, **options: Any) -> bool:
        """Settle the message by the receiver's method ``operation``, and release the delivery. False, and nothing is
        done, where this consumer no longer owns it."""

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return [await self._settle(delivery, "complete_message") for delivery in deliveries]

    async def _postpone(self, delivery: Delivery, delay: float, *, sessions: bool = False) -> bool:
        """Delay an owned delivery: schedule a copy of it, and then complete it."""
        copy = make_message(delivery.packet, sessions=sessions, attempts=delivery.attempt)
        due = datetime.now(UTC) + timedelta(seconds=delay)
        await self._copies.use(lambda sender: sender.schedule_messages(copy, due))
        return await self._settle(delivery, "complete_message")

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        description = write_description(headers)
        return await self._settle(delivery, "dead_letter_message", reason=OWN_REASON, error_description=description)


class ServiceBusConsumer(SettlingConsumer, PollingConsumer[HeldDelivery]):
    """See `contracts.Consumer`. All consumers of a queue share it, whatever their group. A delivery's key is the SDK's
    message."""

    def __init__(self, namespace: ServiceBusNamespace, queue: str, prefetch: int, window: float) -> None:
        SettlingConsumer.__init__(self, namespace, queue)
        PollingConsumer.__init__(self, prefetch, window, MAX_POLL_S)
        self._link = ServiceBusLink(
            namespace, queue, lambda client: client.get_queue_receiver(queue), self._forget_deliveries
        )

    async def _poll_once(self, limit: int, wait: float) -> Sequence[Delivery]:
        started_at = time.monotonic()
        messages = await self._link.use(
            lambda receiver: receiver.receive_messages(limit, max_wait_time=max(wait, 0.01))
        )
        deliveries = []
        for message in messages:
            received = read_packet(message)
            # Two times at which the lock may end: one that the service's clock names, and one window after our call.
            # The earlier one counts, since the machine's clock may be wrong.
            lock_left_s = (message.locked_until_utc - datetime.now(UTC)).total_seconds()
            held = HeldDelivery(message, min(started_at + self._window_s, time.monotonic() + lock_left_s))
            deliveries.append(
                Delivery(packet=received.packet, queue=self._queue, attempt=received.attempt, handle=held)
            )
        return deliveries

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        if delay <= 0:
            return [await self._settle(delivery, "abandon_message") for delivery in deliveries]
        return [
            self._unsettled.owns(delivery.handle) and await self._postpone(delivery, delay) for delivery in deliveries
        ]

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """See `contracts.Consumer`. Renews locks by the queue's lock duration, whatever ``seconds`` is."""
        answers = []
        for delivery in deliveries:
            started_at = time.monotonic()
            renewed = await self._use_lock(delivery, "renew_message_lock")
            if renewed:
                delivery.handle.ends_at = started_at + self._window_s
            answers.append(renewed)
        return answers

    async def _settle(self, delivery: Delivery, operation: str, **options: Any) -> bool:
        settled = await self._use_lock(delivery, operation, **options)
        self._unsettled.release(delivery.handle)
        return settled

    async def _use_lock(self, delivery: Delivery, operation: str, **options: Any) -> bool:
        """Call the receiver's method ``operation``, which needs the message's lock. False where we have lost it."""
        held: HeldDelivery = delivery.handle

        async def call(receiver: Any) -> bool:
            if not self._unsettled.owns(held):  # its lock ended while another call used the receiver
                return False
            await getattr(receiver, operation)(held.key, **options)
            return True

        try:
            return self._unsettled.owns(held) and await self._link.use(call)
        except LockLost:
            self._unsettled.release(held)
            return False

    async def close(self) -> None:
        """Abandon unsettled messages. Where that fails, they are redelivered when their locks end."""
        unsettled = await self._stop_polling()

        async def give_back(receiver: Any) -> None:
            for held in unsettled:
                await receiver.abandon_message(held.key)

        if unsettled:
            with suppress(BrokerUnavailable):
                await self._link.use(give_back)
        await self._link.close()
        await self._copies.close()

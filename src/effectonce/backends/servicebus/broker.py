"""Azure Service Bus, through Microsoft's SDK: peek-lock, duplicate detection by MessageId, native dead letters.

**Never run against the service itself**, nor against Microsoft's emulator, which there is only in a container. What
was run: all but `declare` and `check`, by the SDK over AMQP, against a peer of ours that does what the service is
documented to do (``tests/harness/servicebus.py``); `declare` and `check` against a stand-in for the SDK's
administration client. So the SDK's side of the wire is real, and the service's is our reading of its documentation.

A delivery is ours while its lock lasts, which is the ack window; see `windowed`. There is no delay for a message that
is given back: a copy of it is scheduled, and then it is completed, so that a crash in between doubles it and loses
nothing. Nothing keeps its order but by sessions, which are in `servicebus_sessions`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from effectonce.backends.common.visibility_timeout import Hold, WindowedConsumer
from effectonce.contracts import BrokerCapabilities, Consumer, Delivery, Packet
from effectonce.errors import BrokerUnavailable, InvalidOption
from effectonce.values.durations import micros
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, flag

from .client import Link, Namespace, Refused, parse
from .dead_letters import ServiceBusDeadLetters
from .messages import GIVEN_UP, description_of, message_of, packet_of
from .queues import Settings, check, declare
from .sessions import SessionsConsumer

DAY: Final = 86400.0
#: How long one receive keeps the receiver to itself, in seconds: settlements wait for that long.
SLICE: Final = 0.2


class ServiceBusBackend:
    """``servicebus://KeyName:Key@name.servicebus.windows.net``, the key percent-encoded; without one the machine's
    identity is used, by ``azure-identity``.

    Options: ``ack_window`` (1m: the queue's lock duration, at most 5m), ``dedup_window`` (10m: the queue's duplicate
    detection; ``none``: it has none), ``sessions`` (no; yes: all queues of this broker have sessions, by which an
    ordering key keeps its order), ``retention`` (14d: the queue's default time to live), ``max_body`` (240 KB; more in
    the premium tier), ``timeout`` (30s), ``emulator`` (yes: plain AMQP; queues are as the emulator is configured).
    """

    def __init__(self, address: Address) -> None:
        self._namespace = parse(address)
        dedup: float | None = 600.0
        self._settings = Settings(
            lock=address.seconds("ack_window", 60.0),
            dedup=address.take("dedup_window", _dedup_window, dedup),
            retention=address.seconds("retention", 14 * DAY),
            sessions=address.take("sessions", flag, False),
        )
        max_body = address.take("max_body", int, 240_000)
        address.done()
        if self._settings.lock > 300:
            raise InvalidOption("ack_window of servicebus:// is at most 5m; it is extended while a handler runs")
        self.capabilities = BrokerCapabilities(
            name="servicebus",
            native_dead_letters=True,
            ordering="key" if self._settings.sessions else "none",
            ack_window=self._settings.lock,
            extends=True,
            counts_attempts=True,
            redelivery_horizon=self._settings.retention,
            dedup_window=self._settings.dedup,
            max_body=max_body,
        )

    def publisher(self) -> ServiceBusPublisher:
        return ServiceBusPublisher(self._namespace, self._settings.sessions)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Consumer:
        if self._settings.sessions:
            return SessionsConsumer(self._namespace, require_name(queue), prefetch, self._settings.lock)
        return ServiceBusConsumer(self._namespace, require_name(queue), prefetch, self._settings.lock)

    def dead_letters(self, queue: str, *, group: str) -> ServiceBusDeadLetters:
        return ServiceBusDeadLetters(self._namespace, require_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        await declare(self._namespace, require_name(queue), self._settings)

    async def check(self, queue: str, *, group: str) -> None:
        await check(self._namespace, require_name(queue), self._settings)

    async def close(self) -> None:
        return None

    def __repr__(self) -> str:
        return str(self._namespace)


def _dedup_window(text: str) -> float | None:
    return None if text == "none" else micros(text, "dedup_window") / 1e6


class ServiceBusPublisher:
    """See `contracts.Publisher`. What is sent together arrives together, or not at all."""

    def __init__(self, namespace: Namespace, sessions: bool) -> None:
        self._namespace = namespace
        self._sessions = sessions
        self._links: dict[str, Link] = {}

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        link = self._links.get(queue)
        if link is None:
            name = require_name(queue)
            link = self._links[queue] = Link(self._namespace, queue, lambda client: client.get_queue_sender(name))
        answers: list[Exception | None] = [None] * len(packets)
        batch: Any = None
        session: str | None = None
        waiting: list[int] = []
        for at, packet in enumerate(packets):
            message = message_of(packet, sessions=self._sessions)
            if waiting and message.session_id != session:  # a batch goes to one session
                await self._send(link, batch, waiting, answers)
                batch, waiting = None, []
            session = message.session_id
            for _ in range(2):
                batch = batch or await link.use(lambda sender: sender.create_message_batch())
                try:
                    batch.add_message(message)
                    waiting.append(at)
                    break
                except ValueError as error:  # there is no room for it
                    if not waiting:
                        answers[at] = Refused(f"the message is over what a queue of {self._namespace} takes: {error}")
                        break
                    await self._send(link, batch, waiting, answers)
                    batch, waiting = None, []
        if waiting:
            await self._send(link, batch, waiting, answers)
        if answers and all(isinstance(answer, BrokerUnavailable) for answer in answers):
            raise next(filter(None, answers))
        return answers

    @staticmethod
    async def _send(link: Link, batch: Any, waiting: Sequence[int], answers: list[Exception | None]) -> None:
        try:
            await link.use(lambda sender: sender.send_messages(batch))
        except (BrokerUnavailable, Refused) as error:
            for at in waiting:
                answers[at] = error

    async def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()


class ServiceBusConsumer(WindowedConsumer):
    """See `contracts.Consumer`. A group is only for people here: all consumers of a queue share it."""

    def __init__(self, namespace: Namespace, queue: str, prefetch: int, window: float) -> None:
        super().__init__(prefetch, window, SLICE)
        self._queue = queue
        self._link = Link(namespace, queue, lambda client: client.get_queue_receiver(queue), self._forget)
        self._copies = Link(namespace, queue, lambda client: client.get_queue_sender(queue))

    async def _ask(self, limit: int, wait: float) -> Sequence[Delivery]:
        began = time.monotonic()

        async def receive(receiver: Any) -> Any:
            return await receiver.receive_messages(limit, max_wait_time=max(wait, 0.01))

        found = []
        for message in await self._link.use(receive):
            packet, attempt = packet_of(message)
            # By the service's clock as ours has it, or by ours alone: whichever ends first.
            left = (message.locked_until_utc - datetime.now(UTC)).total_seconds()
            hold = Hold(message, began, min(began + self._window, time.monotonic() + left))
            found.append(Delivery(packet=packet, queue=self._queue, attempt=attempt, handle=hold))
        return found

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return [await self._settle(each, lambda end, message: end.complete_message(message)) for each in deliveries]

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        if delay <= 0:
            return [await self._settle(each, lambda end, message: end.abandon_message(message)) for each in deliveries]
        return [await self._postpone(delivery, delay) for delivery in deliveries]

    async def _postpone(self, delivery: Delivery, delay: float) -> bool:
        if not self._owns(delivery.handle):
            return False
        copy = message_of(delivery.packet, before=delivery.attempt)
        due = datetime.now(UTC) + timedelta(seconds=delay)
        await self._copies.use(lambda sender: sender.schedule_messages(copy, due))
        return all(await self.ack([delivery]))

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        """By the queue's lock duration, however many seconds are asked for."""
        answers = []
        for delivery in deliveries:
            began = time.monotonic()
            mine = await self._settle(delivery, lambda end, message: end.renew_message_lock(message), gone=False)
            if mine:
                delivery.handle.until = began + self._window
            answers.append(mine)
        return answers

    async def _settle(
        self, delivery: Delivery, work: Callable[[Any, Any], Coroutine[Any, Any, Any]], *, gone: bool = True
    ) -> bool:
        """Do ``work`` with a delivery, if it is still ours; ``gone``: then it is no longer."""
        from azure.servicebus import exceptions as sdk

        hold: Hold = delivery.handle

        async def settle(receiver: Any) -> bool:
            if not self._owns(hold):  # while we waited for our turn
                return False
            try:
                await work(receiver, hold.token)
            except (sdk.MessageLockLostError, sdk.MessageNotFoundError, sdk.MessageAlreadySettled):
                self._drop(hold)
                return False
            return True

        if not self._owns(hold):
            return False
        done = await self._link.use(settle)
        if gone:
            self._drop(hold)
        return done

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        why = description_of(headers)
        return await self._settle(
            delivery, lambda end, message: end.dead_letter_message(message, reason=GIVEN_UP, error_description=why)
        )

    async def flush(self) -> None:
        return None

    async def close(self) -> None:
        """What cannot be given back comes when its lock ends."""
        held = await self._stop()

        async def give_back(receiver: Any) -> None:
            for hold in held:
                await receiver.abandon_message(hold.token)

        if held:
            with suppress(BrokerUnavailable):
                await self._link.use(give_back)
        await self._link.close()
        await self._copies.close()

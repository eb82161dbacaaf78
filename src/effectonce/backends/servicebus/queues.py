"""The queues of Azure Service Bus: creating them, and checking them for settings that break a promise."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from effectonce.errors import ConfigurationError

from .client import ServiceBusLink, ServiceBusNamespace, translate

#: After so many deliveries the service itself dead-letters a message. It is set as high as possible: the worker counts.
MAX_DELIVERY_COUNT: Final = 2000


class QueueSettings(Struct, frozen=True, kw_only=True):
    """The settings of a queue that the URL names. Times are in seconds."""

    lock: float  # how long a delivered message is locked
    dedup: float | None  # how long the queue remembers ids; None: it detects no duplicates
    retention: float
    sessions: bool = False


async def declare_queue(namespace: ServiceBusNamespace, queue: str, settings: QueueSettings) -> None:
    """Create the queue; where it exists, take it as it is."""
    if namespace.emulator:  # its queues are created by its own configuration
        return
    from azure.core.exceptions import ResourceExistsError

    options: dict[str, Any] = {
        "lock_duration": timedelta(seconds=settings.lock),
        "max_delivery_count": MAX_DELIVERY_COUNT,
        "default_message_time_to_live": timedelta(seconds=settings.retention),
        "dead_lettering_on_message_expiration": True,
        "requires_duplicate_detection": settings.dedup is not None,
        "requires_session": settings.sessions,
    }
    if settings.dedup is not None:
        options["duplicate_detection_history_time_window"] = timedelta(seconds=settings.dedup)
    try:
        async with namespace.administration() as client:
            await client.create_queue(queue, **options)
    except ResourceExistsError:
        return
    except Exception as error:
        raise translate(error, namespace, queue) from error


async def check_queue(namespace: ServiceBusNamespace, queue: str, settings: QueueSettings) -> None:
    """Raise `ConfigurationError` where the queue is missing, or has other settings than the URL says."""
    await _open_sender(namespace, queue)
    if namespace.emulator:
        return
    try:
        async with namespace.administration() as client:
            queue_properties = await client.get_queue(queue)
    except Exception as error:
        raise translate(error, namespace, queue) from error
    subject = f"queue {queue} at {namespace}"
    if queue_properties.requires_session != settings.sessions:
        has = (
            "requires sessions; add sessions=yes to the URL" if queue_properties.requires_session else "has no sessions"
        )
        raise ConfigurationError(f"{subject} {has}, or recreate it: Service Bus cannot change that")
    if queue_properties.lock_duration < timedelta(seconds=settings.lock):
        raise ConfigurationError(
            f"{subject} locks a message for {queue_properties.lock_duration.total_seconds():g}s only; raise its lock "
            "duration, or set ack_window in the URL to that"
        )
    if queue_properties.default_message_time_to_live > timedelta(seconds=settings.retention):
        raise ConfigurationError(
            f"{subject} keeps messages for {queue_properties.default_message_time_to_live.total_seconds():.0f}s; "
            "set retention in the URL to that, or lower its time to live"
        )
    if settings.dedup is not None and not queue_properties.requires_duplicate_detection:
        raise ConfigurationError(f"{subject} does not detect duplicates; create it again, or add dedup_window=none")
    if not queue_properties.dead_lettering_on_message_expiration:
        raise ConfigurationError(f"{subject} deletes expired messages; enable dead-lettering on message expiration")


async def _open_sender(namespace: ServiceBusNamespace, queue: str) -> None:
    """Open and close a sender, which fails where the queue does not exist."""
    link = ServiceBusLink(namespace, queue, lambda client: client.get_queue_sender(queue))
    try:
        await link.use(lambda sender: asyncio.sleep(0))
    finally:
        await link.close()

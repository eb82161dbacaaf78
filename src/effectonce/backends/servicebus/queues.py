"""The queues of Azure Service Bus: made where they are missing, and checked for settings that break a promise."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from effectonce.errors import ConfigurationError

from .client import Link, Namespace, translate

#: The most deliveries before the service gives a message up by itself; what it takes. Attempts are limited by workers.
DELIVERIES: Final = 2000


class Settings(Struct, frozen=True, kw_only=True):
    """What a queue was said to be like; in seconds."""

    lock: float
    dedup: float | None
    retention: float
    sessions: bool = False


async def declare(namespace: Namespace, queue: str, settings: Settings) -> None:
    if namespace.emulator:  # its queues are made by its own configuration
        return
    from azure.core.exceptions import ResourceExistsError

    options: dict[str, Any] = {
        "lock_duration": timedelta(seconds=settings.lock),
        "max_delivery_count": DELIVERIES,
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


async def check(namespace: Namespace, queue: str, settings: Settings) -> None:
    await _see(namespace, queue)
    if namespace.emulator:
        return
    try:
        async with namespace.administration() as client:
            found = await client.get_queue(queue)
    except Exception as error:
        raise translate(error, namespace, queue) from error
    wrong = f"queue {queue} at {namespace}"
    if found.requires_session != settings.sessions:
        has = "wants sessions; add sessions=yes to the URL" if found.requires_session else "has no sessions"
        raise ConfigurationError(f"{wrong} {has}, or make it anew: that cannot be changed")
    if found.lock_duration < timedelta(seconds=settings.lock):
        raise ConfigurationError(
            f"{wrong} locks a message for {found.lock_duration.total_seconds():g}s only; raise its lock duration, or "
            "set ack_window in the URL to that"
        )
    if found.default_message_time_to_live > timedelta(seconds=settings.retention):
        raise ConfigurationError(
            f"{wrong} keeps messages for {found.default_message_time_to_live.total_seconds():.0f}s; set retention in "
            "the URL to that, or lower its time to live"
        )
    if settings.dedup is not None and not found.requires_duplicate_detection:
        raise ConfigurationError(f"{wrong} does not detect duplicates; make it anew, or add dedup_window=none")
    if not found.dead_lettering_on_message_expiration:
        raise ConfigurationError(f"{wrong} drops what expires; let it dead-letter on message expiration")


async def _see(namespace: Namespace, queue: str) -> None:
    """Open it, and no more."""
    link = Link(namespace, queue, lambda client: client.get_queue_sender(queue))

    async def nothing(sender: Any) -> None:
        return None

    try:
        await link.use(nothing)
    finally:
        await link.close()

"""NATS JetStream: streams, durable pull consumers, and publishing that waits for the stream's ack."""

from __future__ import annotations

import asyncio
from typing import Final, get_args

from effectonce.backends.common.drivers import require_driver
from effectonce.backends.common.reconnecting_connection import closing
from effectonce.contracts import BrokerBackend, BrokerCapabilities
from effectonce.errors import InvalidOption
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, one_of

from .connection import NatsConnection, NatsEndpoint
from .consumer import NatsConsumer
from .dead_letters import NatsDeadLetters
from .monitoring import read_sync_interval
from .publisher import NatsPublisher
from .streams import StreamDeclarations, StreamRetention, require_subject

MAX_BODY_BYTES: Final = 960 * 1024  # the server's default for a message is 1 MB, headers included


class NatsBackend(BrokerBackend):
    """``nats://user:password@host:4222``, or ``nats://token@host:4222``; of a cluster ``nats://host1:4222,host2:4222``.

    Options: ``ack_window`` (30s), ``dedup_window`` (2m), ``retention`` (``workqueue``, or ``limits`` for several
    groups), ``max_age`` (15d; of ``limits``), ``replicas`` (1), ``stream`` (one that others have made, for all
    queues), ``timeout`` (5 s); for the login ``credentials`` (a file with JWT and key) or ``nkey_file`` (one with the
    seed of a key); ``inbox_prefix`` (``_INBOX``: the subjects of replies), ``domain`` (of JetStream), ``monitoring``
    (the server's monitoring address, as ``http://host:8222``, where `effectonce doctor` reads how often it writes to
    disk); and those for TLS: ``tls``, ``ca_file``, ``cert_file``, ``key_file``, ``verify``, ``server_name``.
    """

    def __init__(self, address: Address) -> None:
        default: StreamRetention = "workqueue"
        if address.path not in ("", "/"):
            raise InvalidOption(f"nats:// has no path; name a stream with stream=, got {address}")
        endpoint = NatsEndpoint(address)
        self._streams = StreamDeclarations(
            retention=address.take("retention", one_of(*get_args(StreamRetention)), default),
            window=address.seconds("ack_window", 30.0),
            dedup_window=address.seconds("dedup_window", 120.0),
            max_age=address.seconds("max_age", 15 * 86_400.0),
            replicas=address.take("replicas", int, 1),
            shared_stream=address.take("stream", str, ""),
            endpoint=endpoint,
        )
        address.refuse_unknown_options()
        require_driver("NATS", "nats", "nats")
        streams = self._streams
        has_groups = streams.retention == "limits"
        self.capabilities = BrokerCapabilities(
            name="nats",
            ordering="queue",
            ack_window_s=streams.window,
            extends=True,
            counts_attempts=True,
            groups=has_groups,
            redelivery_horizon_s=streams.max_age if has_groups else None,
            dedup_window_s=streams.dedup_window if streams.deduplicates else None,
            max_delay_s=streams.max_age if has_groups else None,
            delay_limit="its streams delete a message at the age of max_age",
            max_body=MAX_BODY_BYTES,
        )

    def publisher(self) -> NatsPublisher:
        return NatsPublisher(self._streams)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> NatsConsumer:
        return NatsConsumer(self._streams, require_subject(queue), require_name(group, "group"), prefetch)

    def dead_letters(self, queue: str, *, group: str) -> NatsDeadLetters:
        return NatsDeadLetters(self._streams, require_subject(queue), require_name(group, "group"))

    async def declare(self, queue: str, *, group: str) -> None:
        async with closing(await NatsConnection.open(self._streams.endpoint, "effectonce")) as connection:
            await self._streams.declare(connection, require_subject(queue), require_name(group, "group"))

    async def check(self, queue: str, *, group: str) -> None:
        async with closing(await NatsConnection.open(self._streams.endpoint, "effectonce")) as connection:
            await self._streams.check(connection, require_subject(queue), require_name(group, "group"))

    async def sync_interval(self) -> float | None:
        """See `contracts.FlushesLater`. The server tells it only on its monitoring address."""
        return await asyncio.to_thread(read_sync_interval, self._streams.endpoint)

    def __repr__(self) -> str:
        return self._streams.endpoint.shown

"""RabbitMQ: quorum queues, publisher confirms, and acks on the channel that delivered the message."""

from __future__ import annotations

from typing import Final, get_args

from effectonce.backends.common.drivers import require_driver
from effectonce.backends.common.reconnecting_connection import closing
from effectonce.contracts import BrokerBackend, BrokerCapabilities
from effectonce.values.queue_names import require_name
from effectonce.values.urls import Address, flag, one_of

from .connection import RabbitMQConnection
from .consumer import RabbitMQConsumer
from .dead_letters import RabbitMQDeadLetters
from .endpoint import RabbitMQEndpoint
from .packets import MAX_BODY_BYTES
from .publisher import RabbitMQPublisher
from .queues import QueueDeclarations, QueueType, dead_letter_queue

DEFAULT_ACK_WINDOW_S: Final = 1800.0  # the server's default consumer_timeout


class RabbitMQBackend(BrokerBackend):
    """``amqp://user:password@host:5672/vhost``, or ``amqps://`` with TLS. ``host1:5672,host2`` are the nodes of one
    cluster: the next is tried where one does not answer.

    Options for queues: ``queue_type`` (``quorum``, or ``classic``: plain durable queues as other clients declare them,
    which do not count attempts and may lose a message that they pass on after a delay), ``declare`` (``no``: the queue
    is declared by others, and taken as it is), ``exchange`` (publish there, with the queue's name as routing key;
    `declare` binds the queue), ``ack_window`` (30m: the server's ``consumer_timeout``).

    Options for connections, most of them as in RabbitMQ's own URLs: ``timeout`` (10 s, of a reply),
    ``connection_timeout`` (as ``timeout``, for each host; a number without a unit is in milliseconds),
    ``blocked_timeout`` (as ``timeout``: for how long publishing waits while the server is short of memory or disk, and
    0 for not at all; then it raises `BrokerUnavailable`), ``heartbeat`` (30 s, 0 for none), ``frame_max`` and
    ``channel_max`` (0: the server's limits), ``auth_mechanism`` (``PLAIN``, ``AMQPLAIN``, ``EXTERNAL``; by default the
    best that the server offers: EXTERNAL with a client certificate and without a user), ``name`` (``effectonce``: how
    the connection's name begins in the server's list); and those for TLS: ``tls``, ``ca_file``, ``cert_file``,
    ``key_file``, ``verify``, ``server_name``.

    With ``connect_broker(url, password=function)`` the function is asked for the password of each connection, and every
    minute for a new one, which is sent on the connections in use: let it return a new token two minutes before the old
    one expires.

    All consumers of a queue are one group; the group's name only appears in the server's list of connections.
    """

    def __init__(self, address: Address) -> None:
        default: QueueType = "quorum"
        queue_type = address.take("queue_type", one_of(*get_args(QueueType)), default)
        exchange = address.take("exchange", str, "")
        declares = address.take("declare", flag, True)
        window = address.seconds("ack_window", DEFAULT_ACK_WINDOW_S)
        endpoint = RabbitMQEndpoint(address)
        address.refuse_unknown_options()
        require_driver("RabbitMQ", "rabbitmq", "pamqp")
        self._queues = QueueDeclarations(endpoint, queue_type, exchange, declares)
        self.capabilities = BrokerCapabilities(
            name="rabbitmq",
            ordering="queue",
            ack_window_s=window,
            counts_attempts=queue_type == "quorum",
            max_delay_s=self._queues.max_delay_s,
            delay_limit=self._queues.delay_limit,
            max_body=MAX_BODY_BYTES,
        )

    def publisher(self) -> RabbitMQPublisher:
        return RabbitMQPublisher(self._queues)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> RabbitMQConsumer:
        return RabbitMQConsumer(self._queues, require_name(queue), require_name(group, "group"), prefetch)

    def dead_letters(self, queue: str, *, group: str) -> RabbitMQDeadLetters:
        return RabbitMQDeadLetters(self._queues, require_name(queue))

    async def declare(self, queue: str, *, group: str) -> None:
        await self._declare(queue, must_exist=False)

    async def check(self, queue: str, *, group: str) -> None:
        await self._declare(queue, must_exist=True)

    async def _declare(self, queue: str, *, must_exist: bool) -> None:
        async with closing(await RabbitMQConnection.open(self._queues.endpoint, "declarations")) as connection:
            channel = await connection.open_channel()
            if must_exist:
                for name in (require_name(queue), dead_letter_queue(queue)):
                    await self._queues.count_messages(channel, name)
            # To declare a queue that exists only compares its settings.
            await self._queues.declare(channel, require_name(queue))

    def __repr__(self) -> str:
        return self._queues.endpoint.shown

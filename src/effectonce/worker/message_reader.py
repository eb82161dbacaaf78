"""From a packet to a job: verified, decoded, routed, with its key; or the reason why it cannot be handled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import force_setattr, replace

from effectonce.contracts import Delivery, Envelope
from effectonce.errors import UnknownType, show
from effectonce.message import BYPASS_PREFIX, REDRIVEN_HEADER, Message
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import encode_key

from .jobs import USED_ATTEMPTS_HEADER, Job, read_used_attempts
from .routes import HandlerRoute


class MessageReader:
    """Reads the packets of one queue as jobs for its routes."""

    def __init__(self, routes: Sequence[HandlerRoute], envelope: Envelope) -> None:
        self._envelope = envelope
        self._routes = {route.type: route for route in routes}
        self._default_route = self._routes.get(None)

    def read(self, delivery: Delivery) -> Job:
        """Read ``delivery`` as a job. Raises `Undecodable`, `UnknownType`, `MissingKey` or `InvalidKey` where that is
        not possible.

        Where a handler wants a type, the data is read twice: once as plain JSON for the fingerprint (a new field with a
        default must not make a redelivery look like another payload), and once as the handler's type.
        """
        packet = delivery.packet
        message = self._envelope.decode(packet)
        route = self._routes.get(message.type, self._default_route)
        if route is None:
            known = ", ".join(sorted(kind for kind in self._routes if kind)) or "none"
            raise UnknownType(
                f"no handler of queue {delivery.queue!r} takes type {show(message.type)!r} (they take: {known})"
            )
        if route.fingerprint == "data":
            prints = fingerprints(message.data)
        else:
            prints = b"" if route.fingerprint is None else route.fingerprint(_arguments(route, message), {})
        if route.data_type is not Any:
            message = self._envelope.decode(packet, route.data_type)
        if route.offset_is_key and not message.key:
            message = replace(message, id=delivery.offset, key=delivery.offset)
        key = encode_key(message.key if route.key is None else route.key(_arguments(route, message), {}))
        if delivery.attempt > 1:
            force_setattr(message, "attempt", delivery.attempt)
        job = Job(delivery, route, message, key, prints, message.ordering_key or key)
        # A redrive writes it on the packet, or in a header that the envelope carries.
        redriven = packet.headers.get(REDRIVEN_HEADER) or message.headers.get(REDRIVEN_HEADER)
        if redriven is not None:
            job.redriven, job.bypassing = True, redriven.startswith(BYPASS_PREFIX)
        if USED_ATTEMPTS_HEADER in packet.headers:
            job.attempts_before_redrive = read_used_attempts(packet.headers)
        return job


def _arguments(route: HandlerRoute, message: Message[Any]) -> tuple[Any, ...]:
    return (None, message) if route.with_connection else (message,)

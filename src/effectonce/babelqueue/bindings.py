"""BabelQueue's bindings: the form that its contract gives a message on each broker.

That is the names and types of headers, and the fields of the broker's own message. Publishers call
`contracts.Packet.for_broker`, which applies the binding; so no broker's adapter knows of BabelQueue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from effectonce.contracts import Packet

from .headers import ATTEMPTS, CREATED, JOB, JSON_CONTENT_TYPE, RABBITMQ_NAMES, TRACE, VERSION, other_headers


class BabelQueuePacket(Packet, frozen=True, kw_only=True):
    """A packet that `BabelQueue` has written."""

    def for_broker(self, broker: str) -> Packet:
        bind = BINDINGS.get(broker)
        return self if bind is None else bind(self)


def bind_to_rabbitmq(packet: Packet) -> Packet:
    """The contract's headers become properties, or headers of other names; two of them become numbers."""
    headers = packet.headers
    contract = {on_rabbitmq: headers[name] for name, on_rabbitmq in RABBITMQ_NAMES.items() if name in headers}
    headers = {**other_headers(headers), "app-id": "babelqueue", "content-type": JSON_CONTENT_TYPE, **contract}
    return replace(packet, headers=headers, numbers=frozenset((RABBITMQ_NAMES[VERSION], RABBITMQ_NAMES[ATTEMPTS])))


def bind_to_service_bus(packet: Packet) -> Packet:
    """Job and trace become fields of the message, and the version a number. The time of creation stays text, since the
    SDK writes numbers of 32 bits only."""
    fields = {"subject": packet.headers[JOB], "content_type": JSON_CONTENT_TYPE}
    if TRACE in packet.headers:
        fields["correlation_id"] = packet.headers[TRACE]
    return replace(packet, numbers=frozenset((VERSION,)), fields=fields)


BINDINGS: Final[dict[str, Callable[[Packet], Packet]]] = {
    "rabbitmq": bind_to_rabbitmq,
    # The record's timestamp is the time at which the message was created.
    "kafka": lambda packet: replace(packet, fields={"timestamp": int(packet.headers[CREATED])}),
    # Two of the headers become numbers.
    "sqs": lambda packet: replace(packet, numbers=frozenset((VERSION, CREATED))),
    "servicebus": bind_to_service_bus,
}

"""The headers of BabelQueue's messages. Its consumers read them, and brokers route by them.

`BabelQueue` writes them into a packet as text. Most brokers carry them under the names below; `bindings` has the forms
that the contract defines for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from effectonce.contracts import Packet

#: The headers of the contract, by their names in it.
JOB: Final = "bq-job"
TRACE: Final = "bq-trace-id"
ID: Final = "bq-message-id"
VERSION: Final = "bq-schema-version"
LANG: Final = "bq-source-lang"
ATTEMPTS: Final = "bq-attempts"
CREATED: Final = "bq-created-at"
#: All of these.
CONTRACT_HEADERS: Final = frozenset((JOB, TRACE, ID, VERSION, LANG, ATTEMPTS, CREATED))

JSON_CONTENT_TYPE: Final = "application/json"

#: Their names on RabbitMQ. The others are properties there: the message's id, and its timestamp.
RABBITMQ_NAMES: Final = {
    JOB: "type",
    TRACE: "correlation-id",
    VERSION: "x-schema-version",
    LANG: "x-source-lang",
    ATTEMPTS: "x-attempts",
}


def other_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are not part of the contract, and travel beside the envelope."""
    return {name: value for name, value in headers.items() if name not in CONTRACT_HEADERS and name != "content-type"}


def contract_headers(packet: Packet) -> Mapping[str, str]:
    """The headers of a received packet under the contract's names, whichever broker it comes from."""
    headers = packet.headers
    # `type` alone is common on AMQP, so both headers must be there.
    if RABBITMQ_NAMES[VERSION] not in headers or RABBITMQ_NAMES[JOB] not in headers:
        return headers
    renamed = {name: value for name, value in headers.items() if name != "app-id"}
    for name, on_rabbitmq in RABBITMQ_NAMES.items():
        if on_rabbitmq in renamed:
            renamed[name] = renamed.pop(on_rabbitmq)
    return {**renamed, ID: packet.id}

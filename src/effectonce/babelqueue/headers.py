"""The headers of BabelQueue's messages, which its consumers and its brokers' routing go by.

`BabelQueue` writes them into a packet as text: ``bq-job``, ``bq-trace-id``, ``bq-message-id``, ``bq-schema-version``,
``bq-source-lang``, ``bq-attempts``, ``bq-created-at``. Most brokers carry them under these names; `bindings` has what
the contract wants on the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from effectonce.contracts import Packet

JOB: Final = "bq-job"
TRACE: Final = "bq-trace-id"
ID: Final = "bq-message-id"
VERSION: Final = "bq-schema-version"
LANG: Final = "bq-source-lang"
ATTEMPTS: Final = "bq-attempts"
CREATED: Final = "bq-created-at"
CONTRACT: Final = frozenset((JOB, TRACE, ID, VERSION, LANG, ATTEMPTS, CREATED))
"""The headers that the contract names."""

JSON: Final = "application/json"

#: How the contract names them on RabbitMQ, whose messages have properties for the others.
RABBITMQ_NAMES: Final = {
    JOB: "type",
    TRACE: "correlation-id",
    VERSION: "x-schema-version",
    LANG: "x-source-lang",
    ATTEMPTS: "x-attempts",
}


def is_babelqueue(headers: Mapping[str, str]) -> bool:
    """Whether a packet with these headers was written by `babelqueue.BabelQueue`."""
    return VERSION in headers and JOB in headers


def other_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are not part of the contract: they travel beside the envelope."""
    return {name: value for name, value in headers.items() if name not in CONTRACT and name != "content-type"}


def contract_headers(packet: Packet) -> Mapping[str, str]:
    """The headers of a received packet under the contract's names, whichever broker it comes from."""
    headers = packet.headers
    if RABBITMQ_NAMES[VERSION] not in headers or RABBITMQ_NAMES[JOB] not in headers:
        return headers
    renamed = {name: value for name, value in headers.items() if name != "app-id"}
    for name, on_rabbitmq in RABBITMQ_NAMES.items():
        if on_rabbitmq in renamed:
            renamed[name] = renamed.pop(on_rabbitmq)
    return {**renamed, ID: packet.id}

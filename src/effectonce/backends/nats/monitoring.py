"""What a NATS server tells on its monitoring address alone: how often it writes its files to disk."""

from __future__ import annotations

import urllib.request

import msgspec

from effectonce.backends.common.tls import tls_refusal
from effectonce.errors import BrokerUnavailable, show

from .connection import NatsEndpoint


class _Config(msgspec.Struct):
    sync_interval: int = 0  # in nanoseconds
    sync_always: bool = False


class _JetStream(msgspec.Struct):
    config: _Config = msgspec.field(default_factory=_Config)


def read_sync_interval(endpoint: NatsEndpoint) -> float | None:
    """Return for how many seconds the server keeps confirmed messages before it writes them to disk; 0: it writes them
    first. None where the URL names no monitoring address. It blocks."""
    if not endpoint.monitoring:
        return None
    url = f"{endpoint.monitoring}/jsz?config=true"
    try:
        with urllib.request.urlopen(url, timeout=endpoint.timeout, context=endpoint.tls) as reply:
            config = msgspec.json.decode(reply.read(), type=_JetStream).config
    except (OSError, msgspec.DecodeError) as error:
        raise tls_refusal(error, url) or BrokerUnavailable(
            f"{endpoint.monitoring} does not answer as the monitoring of NATS ({show(error, 200)})"
        ) from error
    return 0.0 if config.sync_always else config.sync_interval / 1e9

"""Redis Sentinel: asking the sentinels which server is the primary now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from effectonce.errors import BrokerUnavailable, ConfigurationError, StoreUnavailable

from .endpoint import Node, RedisEndpoint, load_driver
from .errors import ReplyError

if TYPE_CHECKING:
    from .connection import RedisSocket


async def find_primary(open_socket: Callable[[RedisEndpoint], RedisSocket], endpoint: RedisEndpoint) -> Node:
    """Ask one sentinel after another for the address of the primary, until one knows it. That one is asked first from
    then on, so that a dead sentinel costs its timeout once.

    It is asked for every new connection: after a failover the primary is another server. Raises `ConfigurationError`
    where sentinels answer, and none knows the service.
    """
    question = load_driver().pack_command(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", endpoint.service))
    failures: list[Exception] = []
    for sentinel in endpoint.sentinels:
        socket = open_socket(endpoint.of_sentinel(sentinel))
        try:
            await socket.send(question)
            (reply,) = await socket.receive(1)
        except (StoreUnavailable, BrokerUnavailable) as error:
            failures.append(error)
            continue
        finally:
            socket.drop()
        if isinstance(reply, ReplyError):
            failures.append(socket.endpoint.errors.translate(reply))
        elif reply is None:
            failures.append(
                ConfigurationError(
                    f"the sentinel {sentinel} knows no service {endpoint.service}; correct the path of {endpoint.shown}"
                )
            )
        else:
            endpoint.sentinels = sorted(endpoint.sentinels, key=lambda other: other != sentinel)
            host, port = reply
            return Node(host.decode(), int(port))
    raise next((error for error in failures if isinstance(error, ConfigurationError)), failures[-1])

"""A RabbitMQ server: its address and login, the import of its driver, and the error for its refusals."""

from __future__ import annotations

from typing import Any

from effectonce.backends.common.tls import take_tls
from effectonce.errors import ConfigurationError, InvalidOption
from effectonce.values.urls import Address


def load_driver() -> Any:
    """Import pamqp. This is called when RabbitMQ is first used."""
    import pamqp.commands
    import pamqp.frame
    import pamqp.header

    return pamqp


class RabbitMQRefusal(ConfigurationError):
    """The server closed the channel or the connection, since it does not support or allow a request.

    ``status`` is the reply code of AMQP 0-9-1; 0 where the server does not speak it.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[RabbitMQRefusal], tuple[str, int]]:
        return type(self), (str(self), self.status)


class RabbitMQEndpoint:
    """The server's address, the login and the timeouts, read from a URL."""

    def __init__(self, address: Address) -> None:
        tls = take_tls(address, by_scheme=address.scheme == "amqps")
        self.tls = tls.make_context(str(address)) if tls else None
        self.host, self.port = address.host or "localhost", address.port or (5671 if tls else 5672)
        self.user = "guest" if address.user is None else address.user
        self.password = "guest" if address.user is None and address.password is None else address.password or ""
        self.vhost = address.path[1:] or "/"
        self.timeout = address.seconds("timeout", 10.0)
        self.heartbeat = address.take("heartbeat", _parse_heartbeat, 30)
        self.shown = str(address)

    def __repr__(self) -> str:
        return f"RabbitMQEndpoint({self.shown!r})"


def _parse_heartbeat(text: str) -> int:
    seconds = int(text.removesuffix("s"))
    if not 1 <= seconds <= 600:
        raise InvalidOption("the heartbeat is a whole number of seconds, from 1 to 600")
    return seconds

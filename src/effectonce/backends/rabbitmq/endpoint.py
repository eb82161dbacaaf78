"""A RabbitMQ server: its addresses and login, the import of its driver, and the error for its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from effectonce.backends.common.tls import take_tls
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.values.durations import micros
from effectonce.values.urls import Address


def load_driver() -> Any:
    """Import pamqp. This is called when RabbitMQ is first used."""
    import pamqp.commands
    import pamqp.encode
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


class Host(NamedTuple):
    """One of the servers."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RabbitMQEndpoint:
    """The servers' addresses, the login, the limits and the timeouts, read from a URL."""

    def __init__(self, address: Address) -> None:
        self.has_certificate = address.states("cert_file")
        tls = take_tls(address, by_scheme=address.scheme == "amqps")
        self.tls = tls.make_context(str(address)) if tls else None
        port = 5671 if tls else 5672
        self._hosts = [Host(host.host or "localhost", host.port or port) for host in address.hosts]
        self.names_user = address.user is not None
        self.user = "guest" if address.user is None else address.user
        self._password = "guest" if address.user is None and address.password is None else address.password or ""
        #: Returns the password; it may return another one later. See `read_password`.
        self.password_provider = address.take_password_provider()
        self.mechanism = address.take("auth_mechanism", _parse_mechanism, "")
        self.vhost = address.path[1:] or "/"
        self.timeout = address.seconds("timeout", 10.0)
        self.connection_timeout = address.take("connection_timeout", _parse_connection_timeout, self.timeout)
        self.blocked_timeout = address.take("blocked_timeout", _parse_blocked_timeout, self.timeout)
        self.heartbeat = address.take("heartbeat", _parse_heartbeat, 30)
        self.frame_max = address.take("frame_max", _parse_frame_max, 0)  # 0: as large as the server allows
        self.channel_max = address.take("channel_max", _parse_channel_max, 0)  # 0: as many as the server allows
        self.name = address.take("name", str, "effectonce")
        self.shown = str(address)

    @property
    def hosts(self) -> Sequence[Host]:
        """The servers, in the order in which they are tried: that which answered last, then as in the URL."""
        return tuple(self._hosts)

    def prefer(self, host: Host) -> None:
        """Try ``host`` first from now on: while a server is down, not every connection waits for it."""
        self._hosts.sort(key=lambda other: other != host)

    async def read_password(self) -> str:
        """The password for one connection. `BrokerUnavailable` where the caller's function fails; it runs in a thread,
        since it may ask a server for a token."""
        if self.password_provider is None:
            return self._password
        try:
            return await asyncio.to_thread(self.password_provider)
        except Exception as error:
            raise BrokerUnavailable(
                f"the password function of {self.shown} failed ({type(error).__name__}); see its error"
            ) from error

    def __repr__(self) -> str:
        return f"RabbitMQEndpoint({self.shown!r})"


def _parse_heartbeat(text: str) -> int:
    return _whole_number(text.removesuffix("s"), 0, 600, "a number of seconds, and 0 for none")


def _parse_frame_max(text: str) -> int:
    # RabbitMQ 4 breaks the connection of a client that wants less.
    return _whole_number(text, 8192, 2**31 - 1, "a number of bytes, and 0 for the server's limit")


def _parse_channel_max(text: str) -> int:
    # Two: a publisher declares a missing queue on a channel of its own.
    return _whole_number(text, 2, 65_535, "a number of channels, and 0 for the server's limit")


def _whole_number(text: str, least: int, most: int, what: str) -> int:
    number = int(text)
    if number and not least <= number <= most:
        raise InvalidOption(f"it is {what}, from {least} to {most}")
    return number


def _parse_connection_timeout(text: str) -> float:
    if not text.isdigit():
        return micros(text, "connection_timeout") / 1e6
    if int(text) < 100:
        raise InvalidOption(f"without a unit it is in milliseconds, as in RabbitMQ's own URLs; write {text}s")
    return int(text) / 1e3


def _parse_blocked_timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return micros(text, "blocked_timeout") / 1e6
    return micros(seconds, "blocked_timeout") / 1e6 if seconds else 0.0


def _parse_mechanism(text: str) -> str:
    mechanisms = ("PLAIN", "AMQPLAIN", "EXTERNAL", "RABBIT-CR-DEMO")
    if text.upper() not in mechanisms:
        raise InvalidOption(f"use {', '.join(mechanisms)}")
    return text.upper()

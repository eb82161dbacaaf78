"""Logging in to RabbitMQ: which SASL mechanism is used, and what we answer to the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .endpoint import RabbitMQEndpoint, RabbitMQRefusal, load_driver
from .frames import encode_method, encode_short_string

START_OK: Final = b"\x00\x0a\x00\x0b"  # connection.start-ok: the class 10 and the method 11
SECURE_OK: Final = b"\x00\x0a\x00\x15"  # connection.secure-ok: the class 10 and the method 21


class Login:
    """One login with the mechanism that fits the endpoint and what the server offers.

    A client certificate logs in (EXTERNAL) where the URL names no user. Otherwise the user and the password do, as
    PLAIN or, where a server does not offer that, as AMQPLAIN. ``auth_mechanism`` in the URL overrules this. Raises
    `RabbitMQRefusal` where the server offers none of them.
    """

    def __init__(self, endpoint: RabbitMQEndpoint, password: str, offered: str) -> None:
        self._user, self._password = endpoint.user, password
        preferred: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
        if endpoint.mechanism:
            preferred = (endpoint.mechanism,)
        elif endpoint.has_certificate and not endpoint.names_user:
            preferred = ("EXTERNAL", *preferred)
        names = offered.split()
        usable = [name for name in preferred if name in names]
        if not usable:
            raise RabbitMQRefusal(
                f"{endpoint.shown} offers the login mechanisms {', '.join(names)}, and none of these can be used: "
                f"{', '.join(preferred)}; set auth_mechanisms of the server, or auth_mechanism= in the URL",
                403,
            )
        self.mechanism = usable[0]

    def encode_start_ok(self, client_properties: Mapping[str, Any]) -> bytes:
        properties = load_driver().encode.field_table(dict(client_properties))
        mechanism, locale = encode_short_string(self.mechanism), encode_short_string("en_US")
        return encode_method(0, START_OK + properties + mechanism + _long_string(self._first_response()) + locale)

    def encode_secure_ok(self) -> bytes:
        """Encode the answer to a challenge. Only RABBIT-CR-DEMO asks a question of its own; a server that challenges
        any other mechanism wants the response again."""
        if self.mechanism == "RABBIT-CR-DEMO":
            return encode_method(0, SECURE_OK + _long_string(f"My password is {self._password}".encode()))
        return encode_method(0, SECURE_OK + _long_string(self._first_response()))

    def _first_response(self) -> bytes:
        if self.mechanism == "EXTERNAL":
            return b""  # the server takes the user from the certificate
        if self.mechanism == "AMQPLAIN":
            table: bytes = load_driver().encode.field_table({"LOGIN": self._user, "PASSWORD": self._password})
            return table[4:]  # without its length
        if self.mechanism == "RABBIT-CR-DEMO":
            return self._user.encode()
        return f"\0{self._user}\0{self._password}".encode()


def _long_string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data

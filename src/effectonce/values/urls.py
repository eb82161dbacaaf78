"""`Address`: the parsed URL of a store or broker. Its options have types, and it never prints a password."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from effectonce.errors import InvalidOption

from .durations import micros

T = TypeVar("T")

_SECRET_WORDS = ("password", "secret", "token", "private", "passwd", "key")


class HostPort(NamedTuple):
    """One host of a URL; "" and None where the URL does not say."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """Parse ``host``, ``host:port`` or ``[IPv6]:port``. Raises `ValueError`."""
        parts = urlsplit(f"//{text}")
        return cls(parts.hostname or "", parts.port)


class Address:
    """A parsed URL. `take` consumes its options; `refuse_unknown_options` refuses those that were not taken.

    Its ``repr`` and ``str`` leave out the password and every option that looks like one.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            netloc = parts.netloc.rpartition("@")[2]
            #: As in ``host1:5432,host2``. Most servers have one: then `host` and `port` are its.
            self.hosts = [HostPort.parse(text) for text in netloc.split(",")]
        except ValueError:
            parts = None
        # A '/', '#' or '?' in a password ends the host part too early: the rest of the password must not be printed.
        if parts is None or parts.fragment or (parts.netloc and "@" in parts.path + parts.query):
            raise InvalidOption(
                "this URL cannot be parsed: check its host and port, and percent-encode what is special in "
                "the user, the password and the path (urllib.parse.quote(password, safe=''))"
            )
        self.scheme = parts.scheme
        self.netloc = netloc
        self.user = unquote(parts.username) if parts.username is not None else None
        self.password = unquote(parts.password) if parts.password is not None else None
        self.path = unquote(parts.path)
        self._options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._shown = self._redact() if self.scheme else "(a URL without a scheme)"
        self._taken: list[str] = []
        #: Returns the password for one connection, where the URL has none.
        self.password_provider: Callable[[], str] | None = None

    def hide_user(self) -> None:
        """Leave out the user, too, from now on: for a URL whose user is a token."""
        self._shown = self._shown.replace(f"{self.scheme}://{self.user}@", f"{self.scheme}://***@", 1)

    def _redact(self) -> str:
        user = f"{self.user}@" if self.user else ""
        if self.password is not None:
            user = f"{self.user}:***@"
        options = "&".join(
            f"{name}={'***' if any(word in name.lower() for word in _SECRET_WORDS) else value}"
            for name, value in self._options.items()
        )
        return f"{self.scheme}://{user}{self.netloc}{self.path}" + (f"?{options}" if options else "")

    @property
    def host(self) -> str:
        """The only host; "" if there is none."""
        return self._only_host().host

    @property
    def port(self) -> int | None:
        """The port of the only host."""
        return self._only_host().port

    def _only_host(self) -> HostPort:
        if len(self.hosts) > 1:
            raise InvalidOption(f"{self.scheme}:// takes one host; got {self}")
        return self.hosts[0]

    def states(self, name: str) -> bool:
        """Whether the URL has the option ``name``. Ask before it is taken."""
        return name in self._options

    def take(self, name: str, convert: Callable[[str], T], default: T) -> T:
        """The option ``name``, converted; ``default`` if the URL does not have it."""
        self._taken.append(name)
        text = self._options.pop(name, None)
        if text is None:
            return default
        try:
            return convert(text)
        except (ValueError, KeyError, InvalidOption) as error:
            reason = str(error) or type(error).__name__
            raise InvalidOption(f"option {name} of {self} has a bad value: {reason}") from None

    def seconds(self, name: str, default: float) -> float:
        """A duration option, in seconds. A number without a unit is in seconds."""

        def convert(text: str) -> float:
            try:
                return micros(float(text), name) / 1e6
            except ValueError:
                return micros(text, name) / 1e6

        return self.take(name, convert, default)

    def take_password_provider(self) -> Callable[[], str] | None:
        """The caller's function that returns the password for one connection, if there is one."""
        provider, self.password_provider = self.password_provider, None
        if provider is not None and self.password is not None:
            raise InvalidOption(f"{self} has a password, and password= returns another; leave one of them out")
        return provider

    def take_all(self, wanted: Callable[[str], object]) -> dict[str, str]:
        """All options of the URL whose names are ``wanted``, as they stand."""
        return {name: self._options.pop(name) for name in list(self._options) if wanted(name)}

    def refuse_unknown_options(self) -> None:
        """Refuse options that were not taken, naming those that exist."""
        if self.password_provider is not None:
            raise InvalidOption(f"{self.scheme}:// takes no function for its password; write it into the URL")
        if self._options:
            known = ", ".join(sorted(self._taken)) or "none"
            unknown = ", ".join(sorted(self._options))
            raise InvalidOption(f"{self.scheme}:// has no option {unknown}; its options are: {known}")

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"Address({self._shown!r})"


def flag(text: str) -> bool:
    """``convert`` for yes/no options."""
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}[
        text.lower()
    ]


def one_of(*words: str) -> Callable[[str], Any]:
    """``convert`` for options that are one of ``words``."""

    def convert(text: str) -> str:
        if text not in words:
            raise InvalidOption(f"use {' or '.join(words)}")
        return text

    return convert

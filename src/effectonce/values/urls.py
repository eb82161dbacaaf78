"""`Address`: the parsed URL of a store or broker. Its options have types, and it never prints a password."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from effectonce.errors import InvalidOption

from .durations import micros

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

_SECRET_WORDS = ("password", "secret", "token", "private", "passwd", "key")


class Address:
    """A parsed URL. `take` consumes its options; `refuse_unknown_options` refuses those that were not taken.

    Its ``repr`` and ``str`` leave out the password and every option that looks like one.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self.port = parts.port
        except ValueError:
            parts = None
        # A '/', '#' or '?' in a password ends the host part too early: the rest of the password must not be printed.
        if parts is None or parts.fragment or (parts.netloc and "@" in parts.path + parts.query):
            raise InvalidOption(
                "this URL cannot be parsed: check its host and port, and percent-encode what is special in "
                "the user, the password and the path (urllib.parse.quote(password, safe=''))"
            )
        self.scheme = parts.scheme
        self.host = parts.hostname or ""
        self.netloc = parts.netloc.rpartition("@")[2]
        self.user = unquote(parts.username) if parts.username is not None else None
        self.password = unquote(parts.password) if parts.password is not None else None
        self.path = unquote(parts.path)
        self._options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._shown = self._redact() if self.scheme else "(a URL without a scheme)"
        self._taken: list[str] = []

    def _redact(self) -> str:
        user = f"{self.user}@" if self.user else ""
        if self.password is not None:
            user = f"{self.user}:***@"
        options = "&".join(
            f"{name}={'***' if any(word in name.lower() for word in _SECRET_WORDS) else value}"
            for name, value in self._options.items()
        )
        return f"{self.scheme}://{user}{self.netloc}{self.path}" + (f"?{options}" if options else "")

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

    def tls(self, secure: bool, how: str = "TLS") -> ssl.SSLContext | None:
        """Make the TLS context from the options ``ca_file``, ``cert_file`` and ``key_file``. None if the URL is not
        ``secure``. Then these options are refused, and the error names what they need: ``how``."""
        ca_file, cert_file, key_file = (self.take(name, str, "") for name in ("ca_file", "cert_file", "key_file"))
        if not secure:
            if ca_file or cert_file or key_file:
                raise InvalidOption(f"ca_file, cert_file and key_file need {how}; got {self}")
            return None
        import ssl  # only where TLS is used: `import effectonce` stays quick

        try:
            context = ssl.create_default_context(cafile=ca_file or None)
            if cert_file:
                context.load_cert_chain(cert_file, key_file or None)
        except OSError as error:
            raise InvalidOption(f"the TLS files of {self} cannot be used: {error}") from None
        return context

    def refuse_unknown_options(self) -> None:
        """Refuse options that were not taken, naming those that exist."""
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

"""Secrets in output: the passwords of URLs are removed from errors before they are printed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from effectonce.errors import ConfigurationError, EffectOnceError, InvalidOption, show
from effectonce.values.urls import Address

_secret_urls: set[str] = set()  # of the settings, added by `add_secret`


def error_line(error: EffectOnceError, arguments: Sequence[str] = ()) -> str:
    """Return ``effectonce: [code] message`` on one line, with the command that says more."""
    message = show(redact(str(error), arguments), 2000)
    more = "" if isinstance(error, ConfigurationError) else f" (effectonce explain {error.code})"
    return f"effectonce: [{error.code}] {message}{more}"


def redact(text: str, arguments: Iterable[str]) -> str:
    """Return ``text`` without the secrets of URLs in ``arguments``, the environment and the settings.

    Our own errors hold no secrets; the errors of drivers may repeat the URL they were given.
    """
    environment = (os.environ.get(f"EFFECTONCE_{name}", "") for name in ("STORE", "BROKER"))
    for word in (*arguments, *environment, *_secret_urls):
        url = word[word.index("=") + 1 :] if word.startswith("--") and "=" in word else word
        if "://" not in url:
            continue
        text = text.replace(url, without_secrets(url))
        for secret in _secrets(url):
            text = text.replace(secret, "***")
    return text


def add_secret(url: str) -> None:
    """Let `redact` remove ``url`` from now on."""
    _secret_urls.add(url)


def without_secrets(url: str) -> str:
    """Return ``url`` without its secrets, as it may be printed."""
    try:
        address = Address(url)
    except InvalidOption:
        address = None
    if address is None or not address.scheme:
        return f"{show(url.partition('://')[0])}://***"
    return show(address, 500)


def _secrets(url: str) -> Iterable[str]:
    """Return the password in ``url``, as written and decoded. Very short ones are left out: they match common words."""
    rest = url.partition("://")[2]
    written = rest.rpartition("@")[0].partition(":")[2]
    return [secret for secret in (written, unquote(written)) if len(secret) > 3]

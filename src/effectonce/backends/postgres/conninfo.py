"""How to connect to a PostgreSQL server: libpq's parameters, read from a URL or from a psycopg pool.

libpq itself parses what only it knows: lists of hosts, the directories of Unix sockets, services. What it has words
for, but no code, is sorted out here: a failure of TLS is not an outage.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from effectonce.backends.common.tls import TLSOptions, take_tls, tls_failed, tls_refusal_by_text
from effectonce.errors import ConfigurationError, InvalidOption, SyncAsyncMismatch, show
from effectonce.values.urls import Address, one_of

from .driver import conninfo_to_dict, make_conninfo, pq, psycopg

#: Whether to prepare statements. ``auto``: yes, but not behind a pooler. ``on``: also behind a pooler (PgBouncer 1.21
#: or later with max_prepared_statements).
PrepareMode = Literal["auto", "on", "off"]

#: Parameters of libpq that are ours to set.
_OWN_PARAMETERS: Final = ("client_encoding", "connect_timeout", "replication")
_TLS_PARAMETERS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_SSLMODES: Final = {"yes": "verify-full", "ca": "verify-ca", "no": "require"}


def libpq_parameters() -> set[str]:
    """The names of the connection parameters that this libpq knows, without those that are ours to set."""
    return {option.keyword.decode() for option in pq.Conninfo.get_defaults()} - {*_OWN_PARAMETERS}


class ConnectionOptions(Struct, kw_only=True):
    """How to connect, and how long to wait, in seconds."""

    address: str  # without its password, for messages
    timeout: float
    connect_timeout: float
    prepare: PrepareMode
    params: dict[str, Any]  # of libpq
    password: Callable[[], str] | None = None  # returns the password for one connection
    server_name: str = ""  # that the server's certificate must have, if it is not the host

    def attempt_params(self, attempt: dict[str, Any], password: str | None) -> dict[str, Any]:
        """The parameters for one address. libpq connects to ``hostaddr``, and checks the certificate for ``host``."""
        params = dict(attempt)
        if password is not None:
            params["password"] = password
        if self.server_name and params.get("hostaddr"):
            params["host"] = self.server_name
        return params


def take_options(address: Address) -> ConnectionOptions:
    """Read the connection's options from a postgresql:// URL."""
    try:
        params: dict[str, Any] = conninfo_to_dict(f"postgresql://{address.netloc}")
    except psycopg.Error as error:
        raise InvalidOption(f"libpq does not take the hosts of {address}: {first_line(error)}") from None
    login = {"user": address.user, "password": address.password, "dbname": address.path.removeprefix("/")}
    params |= {name: value for name, value in login.items() if value}
    stated = address.take_all(libpq_parameters().__contains__)
    is_tls_stated = address.states("tls")
    tls = take_tls(address)
    if is_tls_stated:
        if conflict := next((name for name in _TLS_PARAMETERS if name in stated), None):
            raise InvalidOption(f"{address} has both tls and libpq's {conflict}; leave one of them out")
        params |= _tls_params(tls)
    params |= stated
    params = {"fallback_application_name": "effectonce", **params, "client_encoding": "UTF8"}
    password = address.take_password_provider()
    try:
        make_conninfo("", **params)
    except psycopg.Error as error:
        raise InvalidOption(f"libpq does not take {address}: {first_line(error)}") from None
    return ConnectionOptions(
        address=str(address),
        timeout=address.seconds("timeout", 5.0),
        connect_timeout=address.seconds("connect_timeout", 5.0),
        prepare=address.take("prepare", one_of(*get_args(PrepareMode)), "auto"),
        params=params,
        password=password,
        server_name=tls.server_name if tls else "",
    )


def _tls_params(tls: TLSOptions | None) -> dict[str, str]:
    """libpq's parameters for ``tls``; None: without TLS."""
    if tls is None:
        return {"sslmode": "disable"}
    params = {"sslmode": _SSLMODES[tls.verify]}
    if tls.verify != "no":
        # The OpenSSL inside psycopg's wheels does not know where this system has its authorities. Python's does.
        params["sslrootcert"] = tls.ca_file or ssl.get_default_verify_paths().cafile or "system"
    if tls.cert_file:
        params |= {"sslcert": tls.cert_file, "sslkey": tls.key_file or tls.cert_file}
    return params


def options_of_pool(pool: Any, timeout: float) -> ConnectionOptions:
    """Read where a pool connects to. Sync callers beside an async pool need connections of our own, and async callers
    beside a sync pool, too."""
    if not isinstance(pool.conninfo, str):
        raise SyncAsyncMismatch(
            f"this {type(pool).__name__} serves only one of sync and async code, and computes its conninfo for each "
            "connection; make the store from a URL, which serves both"
        )
    overrides = {name: value for name, value in (pool.kwargs or {}).items() if name in libpq_parameters()}
    return ConnectionOptions(
        address="the given pool",
        timeout=timeout,
        connect_timeout=timeout,
        prepare="auto",
        params={**conninfo_to_dict(pool.conninfo, **overrides), "client_encoding": "UTF8"},
    )


# -- errors


def first_line(error: Exception) -> str:
    """The first line of libpq's error, for messages. It may name hosts, users and databases, but never a password."""
    return show(str(error).strip().partition("\n")[0] or type(error).__name__, 200)


#: libpq cannot use what it was told about TLS, or the server does not want TLS.
_SETTING_ERRORS: Final = ("certificate file", "private key file", "server does not support SSL", "weak sslmode")


def tls_refusal(error: Exception, address: str) -> ConfigurationError | None:
    """Return our error for libpq's where TLS failed in a way that trying again would not change. None: it is another
    error."""
    text = str(error)
    if refusal := tls_refusal_by_text(text, address):
        return refusal
    if any(words in text for words in _SETTING_ERRORS) or ("SSL error:" in text and "eof" not in text.lower()):
        return tls_failed(address, first_line(error))
    return None

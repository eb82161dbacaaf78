"""How a client of Kafka proves who it is, and whom it trusts: the settings of librdkafka for SASL and TLS."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, get_args

from effectonce.backends.common.tls import TLSOptions, take_tls
from effectonce.errors import InvalidOption
from effectonce.values.urls import Address, one_of

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]

log = logging.getLogger("effectonce.kafka")

#: A token that the caller's function returns is used for so long. librdkafka asks for the next a little earlier.
TOKEN_LIFETIME_S: Final = 300.0


def security_settings(address: Address) -> dict[str, Any]:
    """Read the login and TLS from the URL of a cluster. A client with a login uses TLS, unless the URL says tls=no."""
    login = _login_settings(address)
    tls = take_tls(address, default=bool(login))
    protocol = ("sasl_" if login else "") + ("ssl" if tls else "plaintext")
    return {"security.protocol": protocol, **login, **(_tls_settings(address, tls) if tls else {})}


def _login_settings(address: Address) -> dict[str, Any]:
    """The settings for SASL; {} where the URL has no login."""
    fetch_token = address.take_password_provider()
    default: Mechanism = "PLAIN" if fetch_token is None else "OAUTHBEARER"
    is_mechanism_stated = address.states("mechanism")
    mechanism: Mechanism = address.take("mechanism", one_of(*get_args(Mechanism)), default)
    token_url, scope = address.take("token_url", str, ""), address.take("scope", str, "")
    if (fetch_token or token_url or scope) and mechanism != "OAUTHBEARER":
        raise InvalidOption(f"{address}: a token needs mechanism=OAUTHBEARER")
    if mechanism == "GSSAPI":  # the user is in the ticket
        return {"sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return {"sasl.mechanism": mechanism, **_token_settings(address, fetch_token, token_url, scope)}
    if address.user is None:
        if is_mechanism_stated:
            raise InvalidOption(f"mechanism={mechanism} needs a user: kafka://user:password@host; got {address}")
        return {}
    return {"sasl.mechanism": mechanism, "sasl.username": address.user, "sasl.password": address.password or ""}


def _token_settings(
    address: Address, fetch_token: Callable[[], str] | None, token_url: str, scope: str
) -> dict[str, Any]:
    if fetch_token is not None:
        return {"oauth_cb": partial(_make_token, fetch_token)}
    if not token_url or address.user is None:
        raise InvalidOption(
            "mechanism=OAUTHBEARER takes its token from connect_broker(url, password=function), or from an identity "
            f"provider: kafka://client-id:client-secret@host?mechanism=OAUTHBEARER&token_url=https://…; got {address}"
        )
    settings = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": token_url,
        "sasl.oauthbearer.client.id": address.user,
        "sasl.oauthbearer.client.secret": address.password or "",
    }
    return settings | ({"sasl.oauthbearer.scope": scope} if scope else {})


def _make_token(fetch_token: Callable[[], str], _config: str) -> tuple[str, float]:
    """What librdkafka asks for: a token, and when it expires."""
    try:
        return fetch_token(), time.time() + TOKEN_LIFETIME_S
    except Exception:
        log.exception("the function that returns tokens for Kafka failed")  # librdkafka drops the error
        raise


def _tls_settings(address: Address, tls: TLSOptions) -> dict[str, Any]:
    if tls.server_name:
        raise InvalidOption(
            f"Kafka's brokers have a name each, which they advertise; leave server_name out of {address}, and use "
            "verify=ca where their certificates have other names"
        )
    tls.make_context(str(address))  # a file that cannot be used is found now, not at the first message
    settings: dict[str, Any] = {}
    # The OpenSSL inside the driver's wheels does not know where this system has its authorities. Python's does.
    if authorities := tls.ca_file or ssl.get_default_verify_paths().cafile:
        settings["ssl.ca.location"] = authorities
    if tls.cert_file:
        settings |= {"ssl.certificate.location": tls.cert_file, "ssl.key.location": tls.key_file or tls.cert_file}
    if tls.verify == "no":
        settings["enable.ssl.certificate.verification"] = False
    settings["ssl.endpoint.identification.algorithm"] = "https" if tls.verify == "yes" else "none"
    return settings

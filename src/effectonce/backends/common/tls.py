"""TLS, with the same options and the same errors for every server.

A certificate that is not trusted, that is another server's, or that the server refuses is a `ConfigurationError`:
trying again would not change it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any, Final, Literal, NoReturn

from msgspec import Struct

from effectonce.errors import ConfigurationError, InvalidOption, show
from effectonce.values.urls import Address, flag

#: What is checked of the server's certificate. ``yes``: its authority and its name. ``ca``: only its authority.
Verification = Literal["yes", "ca", "no"]

_OTHER_NAME_CODES: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, and the same of an IP address
_EXPIRED_CODES: Final = (9, 10)  # not yet valid, and not any more
#: Parts of OpenSSL's names for the alerts by which a server refuses the client's certificate, or asks for one.
_CLIENT_REFUSED_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED", "DECRYPT_ERROR")
#: The connection ended during the handshake, or the server failed: that may pass.
_TRANSIENT_ERRORS: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_TRANSIENT_ALERT: Final = "INTERNAL_ERROR"


class TLSOptions(Struct, frozen=True, kw_only=True):
    """The options for TLS, as a URL has them. "" for what it does not say."""

    ca_file: str = ""  # the authorities to trust; "": those of the system
    cert_file: str = ""  # the client's own certificate
    key_file: str = ""  # its private key; "": in cert_file, too
    verify: Verification = "yes"
    server_name: str = ""  # the name that the certificate must have; "": the host

    def make_context(self, shown: str) -> ssl.SSLContext:
        """Make the context that Python's TLS needs. `InvalidOption` where a file cannot be used; ``shown`` is the URL
        in its message."""
        context: ssl.SSLContext = _FixedNameContext(self.server_name) if self.server_name else _new_context()
        # Python 3.13 refuses authorities without a key usage extension by default, such as MySQL makes for itself.
        # OpenSSL, and so libpq and librdkafka, takes them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.verify == "yes"
        context.verify_mode = ssl.CERT_NONE if self.verify == "no" else ssl.CERT_REQUIRED
        option = "ca_file"
        try:
            if self.ca_file:
                context.load_verify_locations(self.ca_file)
            else:
                context.load_default_certs()
            option = "cert_file or key_file"
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file or None, _refuse_encrypted_key)
        except OSError as error:
            raise InvalidOption(f"{option} of {shown} cannot be used: {error.strerror or error}") from None
        except _EncryptedKey:
            raise InvalidOption(
                f"the private key of {shown} is encrypted; write it without a password (openssl pkey -in KEY -out FILE)"
            ) from None
        return context


def take_tls(address: Address, *, default: bool = False, by_scheme: bool = False) -> TLSOptions | None:
    """Read the options ``tls``, ``ca_file``, ``cert_file``, ``key_file``, ``verify`` and ``server_name``. None: without
    TLS, for which ``default`` is what an URL means that does not say. ``by_scheme``: the URL's scheme means TLS."""
    is_on = address.take("tls", flag, default or by_scheme)
    if by_scheme and not is_on:
        raise InvalidOption(f"{address.scheme}:// is with TLS, and {address} says tls=no; leave one of them out")
    given = [name for name in ("ca_file", "cert_file", "key_file", "verify", "server_name") if address.states(name)]
    options = TLSOptions(
        ca_file=address.take("ca_file", str, ""),
        cert_file=address.take("cert_file", str, ""),
        key_file=address.take("key_file", str, ""),
        verify=address.take("verify", _parse_verification, "yes"),
        server_name=address.take("server_name", str, ""),
    )
    if given and not is_on:
        raise InvalidOption(f"{given[0]} is about TLS, and {address} is without; add tls=yes")
    if options.key_file and not options.cert_file:
        raise InvalidOption(f"key_file of {address} needs the certificate that it belongs to: add cert_file=")
    return options if is_on else None


def _parse_verification(text: str) -> Verification:
    if text.lower() == "ca":
        return "ca"
    return "yes" if flag(text) else "no"


def tls_refusal(error: BaseException | None, shown: str) -> ConfigurationError | None:
    """Return our error for ``error`` where it, or an error that caused it, is a failure of TLS that trying again would
    not change. None: it is another error. ``shown`` is the server in the message."""
    for cause in _causes(error):
        if type(cause).__name__ == "CertificateError":  # urllib3's, which compares names itself
            return certificate_refused(shown, str(cause), other_name=True)
        if isinstance(cause, ssl.SSLCertVerificationError):
            if not hasattr(cause, "verify_code"):  # aiohttp's; the one of OpenSSL caused it
                continue
            if cause.verify_code in _EXPIRED_CODES:
                return ConfigurationError(
                    f"the certificate of {shown} is not valid at this time ({cause.verify_message}); renew it, or set "
                    "this machine's clock"
                )
            is_other_name = cause.verify_code in _OTHER_NAME_CODES
            return certificate_refused(shown, cause.verify_message, other_name=is_other_name)
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _TRANSIENT_ERRORS):
            reason = cause.reason or ""
            if _TRANSIENT_ALERT in reason:
                return None
            if "ALERT" in reason and any(alert in reason for alert in _CLIENT_REFUSED_ALERTS):
                return client_certificate_refused(shown, reason)
            return tls_failed(shown, reason or show(cause))
    return None


_OTHER_NAME_TEXTS: Final = ("does not match host name", "hostname mismatch")
_UNTRUSTED_TEXTS: Final = ("certificate verify failed", "signature failure")
_CLIENT_REFUSED_TEXTS: Final = (
    "alert bad certificate",
    "alert certificate",
    "alert handshake failure",
    "alert unknown ca",
    "certificate authentication failed",
    "certificate required",
    "valid client certificate",
)


def tls_refusal_by_text(text: str, shown: str) -> ConfigurationError | None:
    """Do what `tls_refusal` does for the error of a C library, which has only words: libpq and librdkafka."""
    detail = text.strip().partition("\n")[0]
    if any(words in text for words in _OTHER_NAME_TEXTS):
        return certificate_refused(shown, detail, other_name=True)
    if any(words in text for words in _UNTRUSTED_TEXTS):
        return certificate_refused(shown, detail)
    if any(words in text for words in _CLIENT_REFUSED_TEXTS):
        return client_certificate_refused(shown, detail)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """``error`` and all that led to it. HTTP clients and database drivers keep an error's cause in attributes of their
    own, or among its arguments."""
    seen: set[int] = set()
    remaining: list[Any] = [error]
    while remaining:
        current = remaining.pop(0)
        if isinstance(current, BaseException) and id(current) not in seen:
            seen.add(id(current))
            yield current
            remaining += [current.__cause__, current.__context__, *current.args]
            remaining += [getattr(current, name, None) for name in ("original_exception", "reason")]
            kwargs = getattr(current, "kwargs", None)
            remaining += kwargs.values() if isinstance(kwargs, dict) else ()  # botocore's


# -- the errors


def certificate_refused(shown: str, detail: str, *, other_name: bool = False) -> ConfigurationError:
    """The error for a server's certificate that is not trusted; ``other_name``: that is for another server."""
    if other_name:
        return ConfigurationError(
            f"the certificate of {shown} is for another name ({show(detail, 200)}); connect by a name that it has, or "
            "add that as server_name="
        )
    return ConfigurationError(
        f"the certificate of {shown} is not trusted ({show(detail, 200)}); add the authority that signed it as ca_file="
    )


def client_certificate_refused(shown: str, detail: str) -> ConfigurationError:
    """The error for a server that wants a certificate of this client, and got none or one that it does not trust."""
    return ConfigurationError(
        f"{shown} does not accept this client's certificate ({show(detail, 200)}); add one that it trusts as "
        "cert_file= and key_file="
    )


def tls_failed(shown: str, detail: str) -> ConfigurationError:
    """The error for any other failure of TLS, such as a port where the server speaks without."""
    return ConfigurationError(f"TLS with {shown} failed ({show(detail, 200)}); is its port the one for TLS?")


# -- contexts


def _new_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class _FixedNameContext(ssl.SSLContext):
    """Sends and checks ``server_name`` in place of the host: not every driver has an option for that."""

    server_name: str

    def __new__(cls, server_name: str) -> _FixedNameContext:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        context.server_name = server_name
        return context

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*args, **{**options, "server_hostname": self.server_name})

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return super().wrap_bio(*args, **{**options, "server_hostname": self.server_name})


class _EncryptedKey(Exception):
    """OpenSSL would ask the terminal for a password."""


def _refuse_encrypted_key() -> NoReturn:
    raise _EncryptedKey

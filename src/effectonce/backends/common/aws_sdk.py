"""The AWS SDK, as DynamoDB and SQS use it: opening a client by its address, and translating the SDK's errors.

botocore is the SDK for sync code, aiobotocore the same for async code. They are imported when a client is opened.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from effectonce.backends.common.tls import TLSOptions, take_tls, tls_refusal
from effectonce.errors import ConfigurationError, InvalidOption, Retryable, show
from effectonce.values.urls import Address

#: How often the SDK itself tries one call.
SDK_ATTEMPTS: Final = 2


class AWSTarget(Struct, frozen=True, kw_only=True):
    """A service of AWS, and how to reach it. The SDK itself finds the credentials."""

    service: str  # the SDK's name of it, which is also the scheme of its URLs
    table: str = ""  # only for DynamoDB
    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    timeout: float = 5.0
    connect_timeout: float = 5.0
    tls: TLSOptions = TLSOptions()

    def __str__(self) -> str:
        options = {"region": self.region, "endpoint": self.endpoint, "profile": self.profile}
        shown = "&".join(f"{name}={value}" for name, value in options.items() if value)
        return f"{self.service}://{self.table}" + (f"?{shown}" if shown else "")

    def create_client(self, session_class: Any, config_class: Any, *, connections: int, longest_wait: int = 0) -> Any:
        """Make an SDK client (aiobotocore makes a context manager of one) that answers or fails within the timeouts.

        ``longest_wait`` is for how many seconds the service itself may hold a reply back, as in a long poll.
        """
        session = session_class(profile=self.profile)
        session.register_component("data_loader", _data_loader())
        config = config_class(
            # Each attempt has its share of the timeout, so that the options bound the call as a whole.
            connect_timeout=self.connect_timeout / SDK_ATTEMPTS,
            read_timeout=self.timeout / SDK_ATTEMPTS + longest_wait,
            retries={"mode": "standard", "total_max_attempts": SDK_ATTEMPTS},
            max_pool_connections=connections,
            parameter_validation=False,  # our own code makes the parameters
            tcp_keepalive=True,
            client_cert=(self.tls.cert_file, self.tls.key_file or self.tls.cert_file) if self.tls.cert_file else None,
        )
        options: dict[str, Any] = {}
        if self.tls.verify == "no" or self.tls.ca_file:  # else as the SDK is configured
            options["verify"] = False if self.tls.verify == "no" else self.tls.ca_file
        return session.create_client(
            self.service, region_name=self.region, endpoint_url=self.endpoint, config=config, **options
        )


@lru_cache(maxsize=1)
def _data_loader() -> Any:
    """The loader of the SDK's descriptions of services. All clients share it: reading these descriptions takes most of
    the time to open a client."""
    from botocore.loaders import create_loader

    return create_loader()


def parse_target(address: Address, *, table: str = "", timeout: float) -> AWSTarget:
    """Read the target from ``service://…?region=…&endpoint=…&profile=…&timeout=…``. ``timeout`` is the default."""
    scheme = address.scheme
    if address.user is not None or address.password is not None:
        raise InvalidOption(
            f"{scheme}:// takes no credentials in its URL; the AWS SDK finds them itself: in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), a profile (?profile=name) or the machine's role"
        )
    endpoint = address.take("endpoint", str, "")
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise InvalidOption(f"option endpoint of {scheme}:// must look like http://127.0.0.1:8000, without a user")
    tls = _parse_tls(address, endpoint)
    total_timeout = address.seconds("timeout", timeout)
    return AWSTarget(
        service=scheme,
        table=table,
        region=address.take("region", str, "") or None,
        endpoint=endpoint or None,
        profile=address.take("profile", str, "") or None,
        timeout=total_timeout,
        connect_timeout=total_timeout,
        tls=tls,
    )


def _parse_tls(address: Address, endpoint: str) -> TLSOptions:
    """Read the options for TLS. Whether there is TLS depends on the endpoint: AWS's own have it."""
    is_https = not endpoint.startswith("http:")
    tls = take_tls(address, default=is_https)
    if (tls is not None) != is_https:
        raise InvalidOption(f"tls of {address} says one thing and its endpoint the other; leave tls out")
    if tls is None:
        return TLSOptions()
    if tls.server_name or tls.verify == "ca":
        raise InvalidOption(
            f"the AWS SDK has no server_name and no verify=ca; connect {address} by the endpoint's name"
        )
    tls.make_context(str(address))  # a file that cannot be used is found now, not at the first call
    return tls


# -- errors

# Parts of the SDK's error codes: services use the same word for a refusal, with several prefixes and suffixes.
_THROTTLING_CODES: Final = (
    "LimitExceeded",
    "OverLimit",
    "Throttl",
    "ThroughputExceeded",
    "TooManyRequests",
    "TransactionConflict",
)
_CLOCK_SKEWED: Final = ("RequestExpired", "RequestTimeTooSkewed")
_CREDENTIALS_REFUSED: Final = (
    "AccessDenied",
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignature",
    "MissingAuthenticationToken",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClient",
)
_SERVICE_FAILED: Final = ("InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable")


def reply_of(error: Exception) -> dict[str, Any]:
    """The service's reply that ``error`` is about; {} where the service has not replied."""
    reply = getattr(error, "response", None)
    return reply if isinstance(reply, dict) else {}


def error_code(error: Exception) -> tuple[str, str]:
    """The code and the text of the service's refusal; ("", "") where the service has not replied."""
    reported = reply_of(error).get("Error", {})
    return reported.get("Code", ""), reported.get("Message", "") or ""


def translate_error(
    error: Exception,
    target: AWSTarget,
    *,
    unavailable: type[Retryable],
    broken: type[Retryable],
    refused: type[ConfigurationError],
) -> Exception:
    """Return our error for an error of the SDK. Any other exception is a bug of ours, and returned as it is.

    The caller says which errors of ours to use. ``unavailable``: the service cannot be reached, or throttles.
    ``broken``: the service or the connection failed, so that the request may have been carried out. ``refused``: the
    service does not accept the request.
    """
    from botocore import exceptions as sdk

    name = type(error).__name__
    if isinstance(error, sdk.BotoCoreError) and (refusal := tls_refusal(error, str(target))):
        return refusal
    if isinstance(error, sdk.NoRegionError):
        return ConfigurationError(f"{target} names no region; add ?region=eu-west-1, or set AWS_DEFAULT_REGION")
    if isinstance(error, sdk.ProfileNotFound):
        return ConfigurationError(f"the AWS profile of {target} is not in ~/.aws/config; name one that is")
    if isinstance(
        error, sdk.ConnectTimeoutError | sdk.EndpointConnectionError | sdk.ProxyConnectionError | sdk.ReadTimeoutError
    ):
        return unavailable(f"{target} does not answer ({name}); check the endpoint and the network")
    if isinstance(error, sdk.HTTPClientError | sdk.ConnectionError | sdk.ResponseStreamingError):
        return broken(f"the connection to {target} broke ({name})")
    if isinstance(error, sdk.BotoCoreError):  # credentials, of which there are a dozen kinds, or settings
        return ConfigurationError(
            f"the AWS SDK cannot call {target} ({name}); it looks for credentials in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), the profile, and the machine's role"
        )
    if not isinstance(error, sdk.ClientError):
        return error

    code, text = error_code(error)
    status = reply_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if any(part in code for part in _THROTTLING_CODES):
        return unavailable(
            f"{target} has throttled this client ({code}); call it less often, or raise its capacity or quota",
            retry_after=1.0,
        )
    if code in _CLOCK_SKEWED or "Signature expired" in text or "not yet current" in text:
        return ConfigurationError(
            f"{target} rejects this machine's clock ({code}); synchronise it, for example with NTP"
        )
    if any(part in code for part in _CREDENTIALS_REFUSED):
        return ConfigurationError(
            f"{target} does not allow {error.operation_name} with these credentials ({code}: {show(text)}); "
            "check role and policy"
        )
    if status >= 500 or code in _SERVICE_FAILED:
        return broken(f"{target} failed ({code or status})")
    return refused(f"{target} refused the request ({code}: {show(text, 200)})")

"""The catalog of known APIs, as data: where each takes the idempotency key, and how long it keeps it.

The facts come from the providers' published documentation. Describe an API that is missing as one more `Provider`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from effectonce.errors import ConfigurationError, show

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US


class Provider(Struct, frozen=True, kw_only=True):
    """An API that has effects. Windows are in microseconds."""

    name: str
    #: Where the key goes: a header, or a field of the request's body. ``none``: the API takes no keys.
    carrier: Literal["header", "body", "none"] = "header"
    field: str = "Idempotency-Key"
    #: The longest key that it takes, in characters.
    limit: int = 255
    #: How long it keeps a key at least. None: that is not documented, so the operation must say it.
    window: int | None = None
    #: The window of each operation that has another one.
    windows: Mapping[str, int] = {}
    #: Error codes for "a request with this key is still running".
    in_use: tuple[str, ...] = ()
    #: Error codes for "this key was used with another request".
    mismatch: tuple[str, ...] = ()
    #: Error codes for "refused before anything could happen", whatever the HTTP status.
    turned_away: tuple[str, ...] = ()
    #: A header that is ``true`` on errors after which the request may be sent again. Otherwise a 4xx is final.
    transient: str = ""

    @property
    def keyed(self) -> bool:
        return self.carrier != "none"

    def window_of(self, operation: str) -> int | None:
        """How long the API keeps a key of ``operation``, in microseconds."""
        return self.windows.get(operation, self.window)


_PAYPAL_WINDOWS: Final = {
    "orders": 6 * HOUR_US,
    "vault": 3 * HOUR_US,
    "subscriptions": 72 * HOUR_US,
    "payouts": 30 * DAY_US,
    "payments": 45 * DAY_US,
}
_AWS_THROTTLING_CODES: Final = (
    *("Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException"),
    *("RequestLimitExceeded", "SlowDown", "ProvisionedThroughputExceededException", "RequestThrottled"),
    *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "UnrecognizedClientException"),
)

PROVIDERS: Final[Mapping[str, Provider]] = {
    provider.name: provider
    for provider in (
        Provider(name="stripe", window=DAY_US, in_use=("idempotency_key_in_use",), mismatch=("idempotency_error",)),
        Provider(name="stripe-v2", window=30 * DAY_US),
        Provider(
            name="paypal",
            field="PayPal-Request-Id",
            limit=108,
            windows=_PAYPAL_WINDOWS,
            in_use=("PREVIOUS_REQUEST_IN_PROGRESS",),
            mismatch=("PAYPAL_REQUEST_ID_PREVIOUSLY_USED",),
        ),
        Provider(
            name="square", carrier="body", field="idempotency_key", limit=45, mismatch=("IDEMPOTENCY_KEY_REUSED",)
        ),
        Provider(
            name="adyen",
            field="idempotency-key",
            limit=64,
            window=7 * DAY_US,
            in_use=("704",),
            transient="transient-error",
        ),
        Provider(
            name="aws",
            carrier="body",
            field="ClientToken",
            limit=64,
            mismatch=("IdempotentParameterMismatch",),
            turned_away=_AWS_THROTTLING_CODES,
        ),
        Provider(
            name="dynamodb-transactions",
            carrier="body",
            field="ClientRequestToken",
            limit=36,
            window=600_000_000,
            in_use=("TransactionInProgressException",),
            mismatch=("IdempotentParameterMismatchException",),
            turned_away=_AWS_THROTTLING_CODES,
        ),
        Provider(name="resend", limit=256, window=DAY_US),
        Provider(name="ses", carrier="none", field="", limit=0, turned_away=_AWS_THROTTLING_CODES),
        Provider(name="twilio", carrier="none", field="", limit=0),
    )
}


def find_provider(name: str | Provider) -> Provider:
    """Find a provider by its name; a `Provider` is returned as it is."""
    if isinstance(name, Provider):
        return name
    if name not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise ConfigurationError(
            f"no provider is known by {show(name)!r}; known are {known}; describe another with "
            "Provider(name=…, field=…, window=…)"
        )
    return PROVIDERS[name]

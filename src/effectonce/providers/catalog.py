"""The catalog of known APIs, as data: where each takes the idempotency key, and how long it keeps it.

The facts come from the providers' published documentation. Describe an API that is missing as one more `Provider`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from effectonce.errors import ConfigurationError, InvalidOption, show
from effectonce.values.durations import Duration, micros


class Provider(Struct, frozen=True):
    """An API that has effects: ``Provider("acmepay", field="X-Request-Key", window="24h")``.

    Its name is a part of the identity of each intent: rename it only when no intent of it is unfinished.
    """

    name: str
    #: Where the key goes: a header, or a field of the request's body. ``none``: the API takes no keys.
    carrier: Literal["header", "body", "none"] = "header"
    field: str = "Idempotency-Key"
    #: The longest key that it takes, in characters.
    limit: int = 255
    #: How long it keeps a key at least. None: that is not documented, so the operation must say it.
    window: Duration | None = None
    #: The window of each operation that has another one.
    windows: Mapping[str, Duration] = {}
    #: Error codes for "a request with this key is still running".
    in_use: tuple[str, ...] = ()
    #: Error codes for "this key was used with another request".
    mismatch: tuple[str, ...] = ()
    #: Error codes for "refused before anything could happen", whatever the HTTP status.
    turned_away: tuple[str, ...] = ()
    #: A header that is ``true`` on errors after which the request may be sent again. Otherwise a 4xx is final.
    transient: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidOption("a Provider has a name, as in Provider('acmepay', window='24h')")
        if self.carrier not in ("header", "body", "none"):
            raise InvalidOption(f"carrier={self.carrier!r} is none of 'header', 'body' and 'none'")
        if self.window is not None:
            micros(self.window, "window")
        for operation, window in self.windows.items():
            micros(window, f"the window of {show(operation)!r}")

    @property
    def keyed(self) -> bool:
        return self.carrier != "none"

    def window_of(self, operation: str) -> int | None:
        """How long the API keeps a key of ``operation``, in microseconds."""
        window = self.windows.get(operation, self.window)
        return None if window is None else micros(window, "window")


_PAYPAL_WINDOWS: Final[Mapping[str, Duration]] = {
    "orders": "6h",
    "vault": "3h",
    "subscriptions": "72h",
    "payouts": "30d",
    "payments": "45d",
}
_AWS_THROTTLING_CODES: Final = (
    *("Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException"),
    *("RequestLimitExceeded", "SlowDown", "ProvisionedThroughputExceededException", "RequestThrottled"),
    *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "UnrecognizedClientException"),
)

PROVIDERS: Final[Mapping[str, Provider]] = {
    provider.name: provider
    for provider in (
        Provider("stripe", window="24h", in_use=("idempotency_key_in_use",), mismatch=("idempotency_error",)),
        Provider("stripe-v2", window="30d"),
        Provider(
            "paypal",
            field="PayPal-Request-Id",
            limit=108,
            windows=_PAYPAL_WINDOWS,
            in_use=("PREVIOUS_REQUEST_IN_PROGRESS",),
            mismatch=("PAYPAL_REQUEST_ID_PREVIOUSLY_USED",),
        ),
        Provider("square", carrier="body", field="idempotency_key", limit=45, mismatch=("IDEMPOTENCY_KEY_REUSED",)),
        Provider(
            "adyen",
            field="idempotency-key",
            limit=64,
            window="7d",
            in_use=("704",),
            transient="transient-error",
        ),
        Provider(
            "aws",
            carrier="body",
            field="ClientToken",
            limit=64,
            mismatch=("IdempotentParameterMismatch",),
            turned_away=_AWS_THROTTLING_CODES,
        ),
        Provider(
            "dynamodb-transactions",
            carrier="body",
            field="ClientRequestToken",
            limit=36,
            window="10m",
            in_use=("TransactionInProgressException",),
            mismatch=("IdempotentParameterMismatchException",),
            turned_away=_AWS_THROTTLING_CODES,
        ),
        Provider("resend", limit=256, window="24h"),
        Provider("ses", carrier="none", field="", limit=0, turned_away=_AWS_THROTTLING_CODES),
        Provider("twilio", carrier="none", field="", limit=0),
    )
}


def find_provider(name: str | Provider) -> Provider:
    """Find a provider by its name; a `Provider` is returned as it is."""
    if isinstance(name, Provider):
        return name
    if name not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise ConfigurationError(
            f"there is no provider {show(name)!r} (there are {known}); describe another, and pass that in "
            f"place of its name: from effectonce.providers import Provider; Provider({show(name)!r}, window='24h')"
        )
    return PROVIDERS[name]

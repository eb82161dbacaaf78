"""What a worker refuses to start with, since it could not keep its promise (DESIGN: start-up checks)."""

from __future__ import annotations

import math

from msgspec.structs import replace

from effectonce.contracts import BrokerCapabilities
from effectonce.errors import ConfigurationError
from effectonce.values.durations import readable

from .routes import HandlerRoute


def fit_lease(route: HandlerRoute, capabilities: BrokerCapabilities) -> None:
    """Cut the default lease to half of the broker's ack window, where that is shorter. A lease that was set stays."""
    window = capabilities.ack_window
    if route.fits_lease and window is not None and window < 2e-6 * route.policy.lease:
        route.policy = replace(route.policy, lease=round(window * 0.5e6))


def check_spans(route: HandlerRoute, capabilities: BrokerCapabilities, redrive_within: float) -> None:
    """F25: records outlive every way a duplicate can come; F55: a lease ends before the broker gives it away."""
    policy, retry = route.policy, route.retry
    retries = retry.horizon if math.isfinite(retry.horizon) else retry.cap
    horizon = capabilities.redelivery_horizon
    needed = (horizon or 0.0) + retries + redrive_within
    if policy.retention / 1e6 < needed:
        parts = [f"{_span(horizon)} redelivery by {capabilities.name}"] if horizon is not None else []
        parts += [f"{_span(retries)} of retries"] if retries else []
        parts += [f"{_span(redrive_within)} redrive_within"] if redrive_within else []
        raise ConfigurationError(
            f"{route.name} keeps its records for {readable(policy.retention)}, but a duplicate may come after "
            f"{_span(needed)} ({' + '.join(parts)}), and would run again; set retention= to more than that"
        )
    window = capabilities.ack_window
    if window is not None and not route.with_connection and not policy.seen_set and policy.lease / 1e6 >= window:
        raise ConfigurationError(
            f"{route.name} has a lease of {readable(policy.lease)}, and {capabilities.name} delivers again after "
            f"{_span(window)} without an ack: after a crash the message would be redelivered while the old lease still "
            "holds; set lease= below that, or the broker's ack window above"
        )


def _span(seconds: float) -> str:
    return readable(round(seconds * 1e6))

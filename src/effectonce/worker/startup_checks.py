"""What a worker refuses to start with, since it could not keep its promise: leases and retentions that do not fit."""

from __future__ import annotations

import math

from msgspec.structs import replace

from effectonce.contracts import BrokerCapabilities
from effectonce.errors import ConfigurationError
from effectonce.keys import KAFKA_OFFSET
from effectonce.values.durations import span_text

from .routes import HandlerRoute


def fit_lease(route: HandlerRoute, capabilities: BrokerCapabilities) -> None:
    """Cut the default lease to half of the broker's ack window, where that is shorter. A lease that was set stays."""
    window = capabilities.ack_window_s
    if route.has_default_lease and window is not None:
        route.policy = replace(route.policy, lease_us=min(route.policy.lease_us, round(window / 2 * 1e6)))


def check_key(route: HandlerRoute, capabilities: BrokerCapabilities) -> None:
    """Raise `ConfigurationError` if ``route`` takes offsets for keys, and the broker has none."""
    if route.offset_is_key and not capabilities.has_offsets:
        raise ConfigurationError(
            f"{route.name} has key={KAFKA_OFFSET!r}, and messages of {capabilities.name} have no offset; name what the "
            "sender has made, as in key='message.data.order_id'"
        )


def check_spans(route: HandlerRoute, capabilities: BrokerCapabilities, redrive_within_s: float) -> None:
    """Raise `ConfigurationError` unless the records outlive every duplicate that can come (F25), and a lease ends
    before the broker redelivers (F55)."""
    policy, retries = route.policy, route.retry.keep_records_s
    if math.isinf(retries):
        raise ConfigurationError(
            f"{route.name} retries forever, with delays that grow without limit, so no retention= outlives its "
            "duplicates; give its Retry a cap, or a number of attempts"
        )
    horizon = capabilities.redelivery_horizon_s
    needed = redelivery_s(route, capabilities, redrive_within_s)
    if policy.retention_us / 1e6 < needed:
        parts = [f"{_span(horizon)} redelivery by {capabilities.name}"] if horizon is not None else []
        parts += [f"{_span(retries)} of retries"] if retries else []
        parts += [f"{_span(redrive_within_s)} redrive_within"] if redrive_within_s else []
        raise ConfigurationError(
            f"{route.name} keeps its records for {span_text(policy.retention_us)}, but a duplicate may come after "
            f"{_span(needed)} ({' + '.join(parts)}), and would run again; set retention= to more than that"
        )
    window = capabilities.ack_window_s
    if window is not None and not route.with_connection and not policy.seen_set and policy.lease_us / 1e6 >= window:
        raise ConfigurationError(
            f"{route.name} has a lease of {span_text(policy.lease_us)}, and {capabilities.name} delivers again after "
            f"{_span(window)} without an ack: after a crash the message would be redelivered while the old lease still "
            "holds; set lease= below that, or the broker's ack window above"
        )


def redelivery_s(route: HandlerRoute, capabilities: BrokerCapabilities, redrive_within_s: float) -> float:
    """For how many seconds a message of ``route`` may be delivered again: by the broker, by retries and by redrives."""
    return (capabilities.redelivery_horizon_s or 0.0) + route.retry.keep_records_s + redrive_within_s


def _span(seconds: float) -> str:
    return span_text(round(seconds * 1e6))

"""The options of guards (`once`, `block`, and a worker's handlers): they are checked and become a `Policy`."""

from __future__ import annotations

from typing import Any, Final

from effectonce.errors import ConfigurationError, show
from effectonce.values.durations import Duration, micros, span_text

MAX_SCOPE_BYTES: Final = 255
MIN_LEASE_US: Final = 10_000  # a shorter one could not be renewed in time
UNFINISHED_RETENTION_US: Final = 3650 * 86_400_000_000
"""Unfinished intents and sagas are kept for ten years: in practice, until they are finished."""


def policy_options(
    *,
    lease: Duration,
    retention: Duration,
    mode: str = "lease",
    wait: Duration | None = None,
    max_attempts: int | None = None,
    max_run: Duration = "1h",
    on_error: str = "release",
    on_lapse: str = "rerun",
    on_store_error: str = "raise",
    permanent: tuple[type[BaseException], ...] = (),
) -> dict[str, Any]:
    """Check the options of a guard, and return them as fields of a `Policy`."""
    if max_attempts is not None and (not isinstance(max_attempts, int) or max_attempts < 1):
        raise ConfigurationError(f"max_attempts={max_attempts} is not a number of attempts; give 1 or more, or None")
    if micros(lease, "lease") < MIN_LEASE_US:
        raise ConfigurationError(f"lease={lease!r} is too short to be renewed; give at least {span_text(MIN_LEASE_US)}")
    if not isinstance(permanent, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in permanent
    ):
        raise ConfigurationError("permanent= takes a tuple of exception classes, like permanent=(CardDeclined,)")
    is_seen_set = read_choice("mode", mode, "seen", "lease")
    doubt_on_error = read_choice("on_error", on_error, "doubt", "release")
    doubt_on_lapse = read_choice("on_lapse", on_lapse, "doubt", "rerun")
    needs_claim = doubt_on_error or doubt_on_lapse or wait is not None or max_attempts is not None or permanent
    if is_seen_set and needs_claim:
        raise ConfigurationError(
            "mode='seen' claims nothing, so wait=, max_attempts=, permanent=, on_error='doubt' and on_lapse='doubt' "
            "have no meaning there; use mode='lease'"
        )
    return {
        "seen_set": is_seen_set,
        "lease_us": micros(lease, "lease"),
        "retention_us": micros(retention, "retention"),
        "wait_s": None if wait is None else micros(wait, "wait") / 1e6,
        "max_attempts": max_attempts or 0,
        "max_run_s": micros(max_run, "max_run") / 1e6,
        "doubt_on_error": doubt_on_error,
        "doubt_on_lapse": doubt_on_lapse,
        "run_on_store_error": read_choice("on_store_error", on_store_error, "run", "raise"),
        "permanent": permanent,
    }


def read_choice(name: str, value: str, yes: str, no: str) -> bool:
    """Return whether an option with two values is ``yes``. Raises `ConfigurationError` if it is neither."""
    if value not in (yes, no):
        raise ConfigurationError(f"{name}={value!r} is neither {no!r} nor {yes!r}")
    return value == yes


def check_scope(scope: str) -> None:
    """Raise `ConfigurationError` for a scope that is not a short text: empty, too long, or with a NUL."""
    try:
        fits = 0 < len(scope.encode()) <= MAX_SCOPE_BYTES and "\0" not in scope
    except (AttributeError, UnicodeEncodeError):
        fits = False
    if not fits:
        raise ConfigurationError(
            f"scope={show(scope)!r} must be a text of 1 to {MAX_SCOPE_BYTES} bytes; for one scope that all share, pass "
            "GLOBAL"
        )

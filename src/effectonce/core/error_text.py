"""An exception in one line of text, as intents, sagas, outboxes and dead letters store it."""

from __future__ import annotations

from effectonce.errors import scrub_urls, show

from .interrupts import raise_interrupt


def describe_error(error: BaseException, limit: int = 1000) -> str:
    """Return the class and the text of ``error`` on one line, without the secrets of URLs, cut at ``limit``."""
    try:
        return show(scrub_urls(f"{type(error).__name__}: {error}".rstrip(": ")), limit)
    except Exception as failure:  # its own __str__ raises
        raise_interrupt(failure)
        return type(error).__name__


def error_text(error: BaseException, limit: int = 1000) -> str:
    """Return the text of ``error`` alone, as `describe_error` does; "" if it has none."""
    try:
        return show(scrub_urls(str(error)), limit)
    except Exception as failure:
        raise_interrupt(failure)
        return ""


def error_class(error: BaseException) -> str:
    """The name of the class of ``error``, with its module: ``shop.orders:OutOfStock``."""
    return f"{type(error).__module__}:{type(error).__qualname__}"

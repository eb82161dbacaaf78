"""Events as log lines, one each: ``key=value`` for people, or JSON for programs.

    EventLogger().watch(store)
    EventLogger(format="json", level=logging.DEBUG).watch(worker)

    effectonce.events: replayed scope=charge-card key=pay_7f3a attempt=1

A line never holds a payload, a result or a password. Keys are whole, unless the store is private or ``keys=False``:
then a line holds a short hash, by which the lines of one key can still be found.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

from msgspec import json

from effectonce.contracts import Event
from effectonce.core.failure_log import hash_key
from effectonce.errors import InvalidOption, show

from .hooks import Watched, hook_into, is_private

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

#: The level of each kind of event. Other kinds are warnings.
LEVELS = {
    **dict.fromkeys(("claimed", "completed", "first", "recorded", "published", "swept"), DEBUG),
    **dict.fromkeys(("duplicate", "replayed", "in_progress", "released", "redriven", "resolved", "forgotten"), INFO),
    **dict.fromkeys(("in_doubt", "dead_lettered", "exhausted", "fenced", "unrecorded", "parked"), ERROR),
}

MAX_TEXT_CHARACTERS = 500

_PLAIN = re.compile(r'[^ ="]+')
_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")  # of a URL in a driver's error


class EventLogger:
    """A hook that logs events from ``level`` up.

    Two of them with the same options are equal: a store that both watch logs each event once.
    """

    def __init__(
        self,
        logger: logging.Logger | str = "effectonce.events",
        *,
        format: Literal["text", "json"] = "text",
        level: int = logging.INFO,
        keys: bool = True,
    ) -> None:
        if format not in ("text", "json"):
            raise InvalidOption(f"format={format!r} is neither 'text' nor 'json'")
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._write = _as_json if format == "json" else _as_text
        self._level = level
        self._keys = keys
        self._without_keys = EventLogger(logger, format=format, level=level, keys=False) if keys else self

    def watch(self, *watched: Watched) -> EventLogger:
        """Log what happens to these from now on."""
        for source in watched:
            hook_into(source, self._without_keys if is_private(source) else self)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EventLogger) and self._options() == other._options()

    def __hash__(self) -> int:
        return hash(self._options())

    def _options(self) -> tuple[object, ...]:
        return self._logger, self._write, self._level, self._keys

    def __call__(self, event: Event) -> None:
        """Write one line. Without keys it has a hash of the key, and no detail, since that may quote the key."""
        level = LEVELS.get(event.kind, WARNING)
        if level < self._level or not self._logger.isEnabledFor(level):
            return
        facts: dict[str, Any] = {
            "scope": show(event.scope, MAX_TEXT_CHARACTERS),
            "key": show(event.key, MAX_TEXT_CHARACTERS) if self._keys else hash_key(event.scope, event.key),
            "attempt": event.attempt,
            "token": event.token,
            "seconds": round(event.seconds, 6),
            "detail": show(_PASSWORD.sub(r"\1***@", event.detail), MAX_TEXT_CHARACTERS) if self._keys else "",
        }
        facts = {name: value for name, value in facts.items() if value}
        self._logger.log(level, "%s", self._write(event.kind, facts), extra={"effectonce": facts})


def _as_text(kind: str, facts: dict[str, Any]) -> str:
    return " ".join((kind, *(f"{name}={_quote_value(value)}" for name, value in facts.items())))


def _quote_value(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.encode(text).decode()


def _as_json(kind: str, facts: dict[str, Any]) -> str:
    return json.encode({"event": kind, **facts}).decode()

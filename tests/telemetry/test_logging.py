"""One line for each event: the right level, nothing secret, nothing that forges another line."""

from __future__ import annotations

import json
import logging
import re
import shlex
import typing
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import Event
from effectonce.telemetry.logging import LEVELS, EventLogger

Log = pytest.LogCaptureFixture


def charged(store: eo.Store, key: str = "pay_7f3a") -> None:
    with eo.block(store, scope="charge", key=key) as block:
        _ = block.first


def test_a_duplicate_is_logged_and_a_first_run_is_not(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    store = eo.connect("memory://", sweep_every=None)
    EventLogger().watch(store)
    charged(store)
    charged(store)
    assert [(record.levelname, record.name) for record in caplog.records] == [("INFO", "effectonce.events")]
    assert caplog.messages[0].startswith("replayed scope=charge key=pay_7f3a attempt=1 token=")


@pytest.mark.parametrize(("options", "lines"), [({}, 1), ({"format": "json"}, 2)], ids=["equal", "other"])
def test_an_equal_logger_on_one_store_does_not_log_everything_twice(
    caplog: Log, options: dict[str, Any], lines: int
) -> None:
    """Two modules of a program that each make their own."""
    caplog.set_level(logging.DEBUG)
    store = eo.connect("memory://", sweep_every=None)
    EventLogger().watch(store)
    EventLogger(**options).watch(store)
    charged(store)
    charged(store)
    assert len(caplog.records) == lines


def test_json_is_one_object_a_line_and_debug_shows_all(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    store = eo.connect("memory://", sweep_every=None)
    EventLogger("shop", format="json", level=logging.DEBUG).watch(store)
    charged(store)
    claimed, completed = (json.loads(line) for line in caplog.messages)
    assert (claimed["event"], claimed["scope"], claimed["key"]) == ("claimed", "charge", "pay_7f3a")
    assert completed["event"] == "completed"
    assert caplog.records[0].effectonce["scope"] == "charge"  # type: ignore[attr-defined]


def test_a_private_store_shows_no_key_and_no_detail(caplog: Log) -> None:
    """F62."""
    caplog.set_level(logging.DEBUG)
    store = eo.connect("memory://", sweep_every=None, private="a secret of 32 characters or more")
    EventLogger(level=logging.DEBUG).watch(store).watch(store)
    charged(store, "ann@example.org")
    store.runtime.emit("fenced", "charge", "ann@example.org", detail="about ann@example.org")
    assert len(caplog.messages) == 3
    assert "ann" not in caplog.text
    keys = {message.split("key=")[1].split()[0] for message in caplog.messages}
    assert len(keys) == 1, "lines about one key can still be found"


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize(
    "hostile", ["a\r\nclaimed scope=forged", "\x1b[2Jx", "two words", 'quo"ted', "a=b", "x" * 5000]
)
def test_f65_a_key_cannot_forge_a_log_line(format: Any, hostile: str, caplog: Log) -> None:
    store = eo.connect("memory://", sweep_every=None)
    EventLogger(format=format).watch(store)
    store.runtime.emit("fenced", "s", hostile, detail=hostile)
    (line,) = caplog.messages
    assert line.isprintable()
    assert len(line) < 2500
    if format == "json":
        assert set(json.loads(line)) == {"event", "scope", "key", "detail"}
    else:
        assert [word.partition("=")[0] for word in shlex.split(line)] == ["fenced", "scope", "key", "detail"]


def test_f66_no_password_is_in_a_line(caplog: Log) -> None:
    store = eo.connect("memory://", sweep_every=None)
    EventLogger().watch(store)
    store.runtime.emit("publish_failed", "orders", "1", detail="cannot reach amqp://shop:canary@host/vhost: refused")
    assert "canary" not in caplog.text
    assert "amqp://shop:***@host/vhost" in caplog.text


def test_every_kind_with_a_level_exists() -> None:
    kinds = set(typing.get_args(typing.get_type_hints(Event)["kind"]))
    assert set(LEVELS) <= kinds


def test_watching_other_objects_is_refused() -> None:
    with pytest.raises(eo.ConfigurationError, match="a sink watches a Store, a Worker, a Relay or an Inbox, not str"):
        EventLogger().watch("redis://")  # type: ignore[arg-type]
    with pytest.raises(eo.InvalidOption):
        EventLogger(format="xml")  # type: ignore[arg-type]


def test_only_events_of_its_level_and_above_are_logged(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    kinds = ("completed", "replayed", "lease_lost", "fenced")  # debug, info, warning, error
    for level, logged in ((logging.DEBUG, 4), (logging.INFO, 3), (logging.WARNING, 2), (logging.ERROR, 1)):
        caplog.clear()
        for kind in kinds:
            EventLogger(level=level)(event(kind))
        assert [message.split()[0] for message in caplog.messages] == [*kinds[4 - logged :]]


def test_a_line_has_what_the_event_has_and_no_more(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    EventLogger()(event("replayed"))
    EventLogger()(event("released", key="a b", attempt=2, token=7, seconds=0.12345678, detail="ValueError"))
    assert caplog.messages == [
        "replayed scope=charge",
        'released scope=charge key="a b" attempt=2 token=7 seconds=0.123457 detail=ValueError',
    ]


def test_without_keys_a_line_has_a_hash_that_another_scope_does_not_share(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    without_keys = EventLogger(keys=False)
    without_keys(event("released", key="ann", detail="about ann"))
    without_keys(event("released", key="ann", scope="refund"))
    without_keys(event("released"))
    first, second, third = caplog.messages
    assert re.fullmatch("released scope=charge key=#[0-9a-f]{12}", first)
    assert first.split("key=")[1] != second.split("key=")[1]
    assert third == "released scope=charge"


def test_long_texts_are_cut(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    EventLogger()(event("released", key="k" * 5000, detail="d" * 5000))
    assert len(caplog.messages[0]) < 1200


def test_a_format_is_text_or_json() -> None:
    with pytest.raises(eo.InvalidOption, match="neither 'text' nor 'json'"):
        EventLogger(format="xml")  # type: ignore[arg-type]


def event(kind: typing.Any, *, scope: str = "charge", key: str = "", **facts: Any) -> Event:
    return Event(kind=kind, scope=scope, key=key, **facts)

"""The text of a cursor: the position comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from effectonce.errors import InvalidOption
from effectonce.values.cursors import CursorDigest, CursorNumber, CursorText, read_cursor, write_cursor

Place = tuple[CursorNumber, CursorText, CursorText]
DIGEST = bytes(range(32))


def as_cursor(json: str) -> str:
    return base64.urlsafe_b64encode(json.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("position_type", "position"),
    [
        (Place, (0, "", "")),
        (Place, (10**18 - 1, "a:b", 'é"\n\x7f')),
        (tuple[CursorNumber, CursorDigest], (7, DIGEST)),
        (list[tuple[CursorNumber, CursorDigest] | None], [(7, DIGEST), None]),
    ],
)
def test_a_position_comes_back(position_type: Any, position: Any) -> None:
    cursor = write_cursor("records", position)
    assert read_cursor(cursor, "records", position_type) == position
    assert cursor.isascii()
    assert cursor.replace("-", "").replace("_", "").isalnum(), "a shell needs no quotes for it"


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "é",
        "\ud800",
        write_cursor("records", (1, "a", "b"))[:-1],
        write_cursor("outbox rows", (1, "a", "b")),
        write_cursor("records", (1, "a")),
        write_cursor("records", (-1, "a", "b")),
        write_cursor("records", (10**18, "a", "b")),
        write_cursor("records", (1, "a\0", "b")),
        as_cursor('["records", [1, "\\ud800", "b"]]'),
        as_cursor('["records", [1.5, "a", "b"]]'),
        as_cursor("[]"),
    ],
)
def test_anything_else_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidOption, match="was not made by this list; start again without one"):
        read_cursor(cursor, "records", Place)


def test_a_digest_has_its_length() -> None:
    with pytest.raises(InvalidOption):
        read_cursor(write_cursor("records", DIGEST[1:]), "records", CursorDigest)

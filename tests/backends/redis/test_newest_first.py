"""The scan behind a list that shows the newest first: how far it goes, with a stand-in for the nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from effectonce.backends.redis import newest_first
from effectonce.core.run_sync import run_sync
from effectonce.record import Query

DIGEST = b"d" * 32


def port_on(steps: dict[str, int]) -> Any:
    """A port on nodes that need so many steps each; every step finds a record."""
    asked: list[tuple[str, str]] = []

    async def nodes() -> list[str]:
        return list(steps)

    async def run_on_node(node: str, script: str, cursor: str, *_: Any) -> list[bytes]:
        asked.append((node, cursor))
        following = (int(cursor) + 1) % steps[node]
        return [b"%d" % following, b"prefix" + DIGEST, b"%d" % len(asked)]

    layout = SimpleNamespace(pattern=b"p")
    return SimpleNamespace(connection=SimpleNamespace(nodes=nodes), run_on_node=run_on_node, layout=layout, asked=asked)


@pytest.mark.parametrize(
    ("steps", "found", "is_partial"),
    [
        ({"a": 2}, 2, False),
        ({"a": 3}, 3, False),
        ({"a": 4}, 3, True),
        ({"a": 2, "b": 1}, 3, False),
        ({"a": 3, "b": 1}, 3, True),
    ],
)
def test_a_scan_goes_through_all_nodes_up_to_a_number_of_steps(
    monkeypatch: pytest.MonkeyPatch, steps: dict[str, int], found: int, is_partial: bool
) -> None:
    monkeypatch.setattr(newest_first, "MAX_SCAN_STEPS", 3)
    port = port_on(steps)
    places, partial = run_sync(newest_first._find_by_scan(port, Query(limit=9)))
    assert (len(places), partial) == (found, is_partial)
    assert places[0] == (1, DIGEST)
    assert port.asked[:2] == [("a", "0"), ("a", "1")]

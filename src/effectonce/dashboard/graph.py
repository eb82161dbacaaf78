"""A saga as a drawing: its steps from top to bottom, their compensations beside them, the way it took highlighted.

This module makes geometry and classes only: colours are in the style sheet, since pages forbid inline styles.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Final

from msgspec import Struct

from effectonce.sagas.log import LoggedStep, SagaLog, StepProgress

WIDTH: Final = 354
LEFT, STEP, RIGHT, UNDO = 0, 152, 188, 152
TOP, HIGH, PITCH = 6, 46, 74
END: Final = 30


class Node(Struct, frozen=True, kw_only=True):
    """A box: a step, its compensation (``undo``), or an end."""

    x: int
    y: int
    width: int
    height: int = HIGH
    title: str
    state: str  # pending, running, done, failed, timed_out, doubt; of an end: reached, or pending
    note: str = ""
    shape: str = "step"

    @property
    def middle(self) -> int:
        return self.y + self.height // 2

    @property
    def centre(self) -> int:
        return self.x + self.width // 2


class Edge(Struct, frozen=True):
    """A line from node to node. ``taken``: the saga went that way."""

    path: str
    taken: bool
    undoing: bool = False


class Drawing(Struct, frozen=True):
    """A saga's nodes and edges, with coordinates."""

    width: int
    height: int
    nodes: list[Node]
    pairs: list[str]  # lines between each step and its compensation
    edges: list[Edge]


def draw(log: SagaLog, state: str, undoable: Collection[str] | None) -> Drawing:
    """Draw a saga. ``state`` is its record's. ``undoable`` names the steps with a compensation; None: not known, so
    only the compensations that have begun are drawn."""
    edges: list[Edge] = []
    steps: list[Node] = []
    undos: dict[str, Node] = {}
    for index, entry in enumerate(log.entries):
        y = TOP + index * PITCH
        steps.append(_node(log, state, entry, entry.do, x=LEFT, y=y, width=STEP, title=entry.name))
        has_undo = entry.undo.state != "pending" if undoable is None else entry.name in undoable
        if has_undo:
            title = f"undo {entry.name}"
            undos[entry.name] = _node(
                log, state, entry, entry.undo, x=RIGHT, y=y, width=UNDO, title=title, shape="undo"
            )
    base = TOP + len(steps) * PITCH
    done = _end("done", LEFT, STEP, base, state == "done")
    failed = _end("failed", RIGHT, UNDO, base, state == "failed")

    for step, following in zip(steps, [*steps[1:], done], strict=True):
        taken = step.state == "done" and following.state != "pending"
        edges.append(Edge(f"M{step.centre} {step.y + step.height}V{following.y - 1}", taken))
    pairs = [
        f"M{node.x + node.width + 3} {node.middle}H{RIGHT - 3}"
        for entry, node in zip(log.entries, steps, strict=True)
        if entry.name in undos
    ]
    # Compensations run upwards; after the last of them, the saga has failed.
    chain = [undos[entry.name] for entry in reversed(log.entries) if entry.name in undos]
    for undo, following in pairwise(chain):
        path = f"M{undo.centre} {undo.y}V{following.y + following.height + 1}"
        edges.append(Edge(path, following.state != "pending", undoing=True))
    if chain:
        edges.append(Edge(_around(chain[-1], failed), state == "failed" and chain[-1].state == "done", undoing=True))
    turned = [index for index, entry in enumerate(log.entries) if entry.name == log.failed_at]
    if log.phase == "compensating" and turned:
        undone = [undos[entry.name] for entry in log.entries[: turned[0]] if entry.name in undos]
        edges.append(Edge(_turn(steps[turned[0]], undone[-1] if undone else failed), taken=True, undoing=True))
    return Drawing(WIDTH, base + END + TOP, [*steps, *undos.values(), done, failed], pairs, edges)


def _turn(step: Node, to: Node) -> str:
    """Return the path from a step that failed to its first compensation, through the lane between the columns."""
    lane, up = (LEFT + STEP + RIGHT) // 2, 5 if to.y > step.y else -5
    bend = f"H{lane - 5}Q{lane} {step.middle} {lane} {step.middle + up}V{to.middle - up}Q{lane} {to.middle} {lane + 5}"
    return f"M{step.x + step.width} {step.middle}{bend} {to.middle}H{to.x - 1}"


def _around(undo: Node, failed: Node) -> str:
    """Return the path from the last compensation to the end, along the right edge."""
    rail = WIDTH - 2
    down = f"H{rail - 5}Q{rail} {undo.middle} {rail} {undo.middle + 5}V{failed.middle - 5}"
    back = f"Q{rail} {failed.middle} {rail - 5} {failed.middle}H{failed.x + failed.width + 1}"
    return f"M{undo.x + undo.width} {undo.middle}{down}{back}"


def _node(
    log: SagaLog,
    state: str,
    entry: LoggedStep,
    part: StepProgress,
    *,
    x: int,
    y: int,
    width: int,
    title: str,
    shape: str = "step",
) -> Node:
    doubtful = state == "in_doubt" and log.doubtful == entry.name and part is log.find_doubtful()[1]
    shown = "doubt" if doubtful else part.state
    words = {"doubt": "in doubt", "timed_out": "timed out"}.get(shown, shown)
    tries = f", {part.attempts} tries" if part.attempts > 1 else ""
    fits = (width - 32) // 8  # beside the dot
    cut = title if len(title) <= fits else f"{title[: fits - 1]}…"
    return Node(x=x, y=y, width=width, title=cut, state=shown, note=words + tries, shape=shape)


def _end(title: str, x: int, width: int, y: int, reached: bool) -> Node:
    size = 84
    return Node(
        x=x + (width - size) // 2,
        y=y,
        width=size,
        height=END,
        title=title,
        state=title if reached else "pending",
        shape="end",
    )

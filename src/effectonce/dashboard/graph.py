"""A saga as a drawing: its steps downwards, what undoes them beside, the way that it went in colour.

Only geometry and classes: colours are in the style sheet, since the page allows no style of its own.
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
    """A box: a step, what undoes it, or an end."""

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
    """A line from node to node; ``taken``: the saga went that way."""

    path: str
    taken: bool
    undoing: bool = False


class Drawing(Struct, frozen=True):
    width: int
    height: int
    nodes: list[Node]
    pairs: list[str]  # lines that say which compensation is whose
    edges: list[Edge]


def draw(log: SagaLog, state: str, undoable: Collection[str] | None) -> Drawing:
    """``state``: of the record. ``undoable``: the steps with a compensation; None: not known, so those are drawn that
    were begun."""
    edges: list[Edge] = []
    steps: list[Node] = []
    undos: dict[str, Node] = {}
    for at, entry in enumerate(log.entries):
        y = TOP + at * PITCH
        steps.append(_node(log, state, entry, entry.do, x=LEFT, y=y, width=STEP, title=entry.name))
        if entry.name in undoable if undoable is not None else entry.undo.state != "pending":
            title = f"undo {entry.name}"
            undos[entry.name] = _node(
                log, state, entry, entry.undo, x=RIGHT, y=y, width=UNDO, title=title, shape="undo"
            )
    base = TOP + len(steps) * PITCH
    done = _end("done", LEFT, STEP, base, state == "done")
    failed = _end("failed", RIGHT, UNDO, base, state == "failed")

    for one, other in zip(steps, [*steps[1:], done], strict=True):
        taken = one.state == "done" and other.state != "pending"
        edges.append(Edge(f"M{one.centre} {one.y + one.height}V{other.y - 1}", taken))
    pairs = [
        f"M{node.x + node.width + 3} {node.middle}H{RIGHT - 3}"
        for entry, node in zip(log.entries, steps, strict=True)
        if entry.name in undos
    ]
    # Compensations run upwards; after the last of them, the saga has failed.
    chain = [undos[entry.name] for entry in reversed(log.entries) if entry.name in undos]
    for one, other in pairwise(chain):
        edges.append(Edge(f"M{one.centre} {one.y}V{other.y + other.height + 1}", other.state != "pending", True))
    if chain:
        edges.append(Edge(_around(chain[-1], failed), state == "failed" and chain[-1].state == "done", True))
    turned = [at for at, entry in enumerate(log.entries) if entry.name == log.failed_at]
    if log.phase == "compensating" and turned:
        undone = [undos[entry.name] for entry in log.entries[: turned[0]] if entry.name in undos]
        edges.append(Edge(_turn(steps[turned[0]], undone[-1] if undone else failed), True, True))
    return Drawing(WIDTH, base + END + TOP, [*steps, *undos.values(), done, failed], pairs, edges)


def _turn(step: Node, to: Node) -> str:
    """From a step that failed, through the lane between the columns."""
    lane, up = (LEFT + STEP + RIGHT) // 2, 5 if to.y > step.y else -5
    bend = f"H{lane - 5}Q{lane} {step.middle} {lane} {step.middle + up}V{to.middle - up}Q{lane} {to.middle} {lane + 5}"
    return f"M{step.x + step.width} {step.middle}{bend} {to.middle}H{to.x - 1}"


def _around(undo: Node, failed: Node) -> str:
    """From the last compensation to the end, along the right edge."""
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
        x=x + (width - size) // 2, y=y, width=size, height=END, title=title,
        state=("done" if title == "done" else "failed") if reached else "pending", shape="end",
    )  # fmt: skip

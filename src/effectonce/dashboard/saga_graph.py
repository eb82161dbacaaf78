"""The graph of a saga: its steps from top to bottom, compensations beside them, and the path it took highlighted.

This module computes geometry and CSS classes. Colours are in the style sheet: pages forbid inline styles.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Final

from msgspec import Struct

from effectonce.display.sagas import SagaPartView, make_saga_part_view
from effectonce.sagas.log import SagaLog

DRAWING_WIDTH: Final = 354
NODE_WIDTH: Final = 152
STEPS_X: Final = 0
UNDOS_X: Final = 188
TOP_MARGIN: Final = 6
NODE_HEIGHT: Final = 46
ROW_HEIGHT: Final = 74
END_WIDTH: Final = 84
END_HEIGHT: Final = 30
MAX_TITLE_CHARACTERS: Final = 15


class GraphNode(Struct, frozen=True, kw_only=True):
    """A box: a step, its compensation (``undo``), or an end."""

    x: int
    y: int
    width: int = NODE_WIDTH
    height: int = NODE_HEIGHT
    title: str
    state: str  # pending, running, done, failed, timed_out, in_doubt; of an end: reached, or pending
    note: str = ""
    shape: str = "step"

    @property
    def mid_y(self) -> int:
        return self.y + self.height // 2

    @property
    def mid_x(self) -> int:
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
    nodes: list[GraphNode]
    pairs: list[str]  # lines between each step and its compensation
    edges: list[Edge]


def draw(log: SagaLog, state: str, undoable: Collection[str] | None) -> Drawing:
    """Draw a saga. ``state`` is its record's. ``undoable`` names the steps with a compensation; None: not known, so
    only the compensations that have begun are drawn."""
    steps: list[GraphNode] = []
    undos: dict[int, GraphNode] = {}  # by the index of the step
    for index, entry in enumerate(log.entries):
        y = TOP_MARGIN + index * ROW_HEIGHT
        steps.append(_node(make_saga_part_view(log, state, entry, undoes=False), y))
        has_undo = entry.undo.state != "pending" if undoable is None else entry.name in undoable
        if has_undo:
            undos[index] = _node(make_saga_part_view(log, state, entry, undoes=True), y)
    base = TOP_MARGIN + len(steps) * ROW_HEIGHT
    done = _end("done", STEPS_X, base, state)
    failed = _end("failed", UNDOS_X, base, state)

    edges: list[Edge] = []
    for step, following in pairwise([*steps, done]):
        taken = step.state == "done" and following.state != "pending"
        edges.append(Edge(f"M{step.mid_x} {step.y + step.height}V{following.y - 1}", taken))
    pairs = [f"M{NODE_WIDTH + 3} {undo.mid_y}H{UNDOS_X - 3}" for undo in undos.values()]
    # Compensations run upwards; after the last of them, the saga has failed.
    chain = list(reversed(undos.values()))
    for undo, following in pairwise(chain):
        path = f"M{undo.mid_x} {undo.y}V{following.y + following.height + 1}"
        edges.append(Edge(path, following.state != "pending", undoing=True))
    if chain:
        edges.append(
            Edge(_edge_to_failed(chain[-1], failed), state == "failed" and chain[-1].state == "done", undoing=True)
        )
    turned_at = next((index for index, entry in enumerate(log.entries) if entry.name == log.failed_at), None)
    if log.phase == "compensating" and turned_at is not None:
        first_undo = next((undos[index] for index in reversed(range(turned_at)) if index in undos), failed)
        edges.append(Edge(_edge_to_first_undo(steps[turned_at], first_undo), taken=True, undoing=True))
    return Drawing(DRAWING_WIDTH, base + END_HEIGHT + TOP_MARGIN, [*steps, *undos.values(), done, failed], pairs, edges)


def _edge_to_first_undo(step: GraphNode, to: GraphNode) -> str:
    """Return the path from a step that failed to its first compensation, through the lane between the columns."""
    lane, up = (NODE_WIDTH + UNDOS_X) // 2, 5 if to.y > step.y else -5
    bend = f"H{lane - 5}Q{lane} {step.mid_y} {lane} {step.mid_y + up}V{to.mid_y - up}Q{lane} {to.mid_y} {lane + 5}"
    return f"M{step.x + step.width} {step.mid_y}{bend} {to.mid_y}H{to.x - 1}"


def _edge_to_failed(undo: GraphNode, failed: GraphNode) -> str:
    """Return the path from the last compensation to the end, along the right edge."""
    rail = DRAWING_WIDTH - 2
    down = f"H{rail - 5}Q{rail} {undo.mid_y} {rail} {undo.mid_y + 5}V{failed.mid_y - 5}"
    back = f"Q{rail} {failed.mid_y} {rail - 5} {failed.mid_y}H{failed.x + failed.width + 1}"
    return f"M{undo.x + undo.width} {undo.mid_y}{down}{back}"


def _node(part: SagaPartView, y: int) -> GraphNode:
    title, attempts = part.title, part.progress.attempts
    if len(title) > MAX_TITLE_CHARACTERS:
        title = f"{title[: MAX_TITLE_CHARACTERS - 1]}…"
    return GraphNode(
        x=UNDOS_X if part.undoes else STEPS_X,
        y=y,
        title=title,
        state=part.state,
        note=f"{part.state_word}, {attempts} attempts" if attempts > 1 else part.state_word,
        shape="undo" if part.undoes else "step",
    )


def _end(title: str, column_x: int, y: int, state: str) -> GraphNode:
    x = column_x + (NODE_WIDTH - END_WIDTH) // 2
    reached = title if state == title else "pending"
    return GraphNode(x=x, y=y, width=END_WIDTH, height=END_HEIGHT, title=title, state=reached, shape="end")

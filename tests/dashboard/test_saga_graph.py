"""The graph of a saga: which boxes and lines it has, that these meet, and which of them were taken."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any

import pytest

from effectonce.dashboard.saga_graph import MAX_TITLE_CHARACTERS, Drawing, Edge, GraphNode, draw
from effectonce.sagas.log import LoggedStep, SagaLog, StepProgress

STEPS = ("reserve", "charge", "ship")


def progress(state: Any = "pending", attempts: int = 0) -> StepProgress:
    return StepProgress(state=state, attempts=attempts)


def log_of(*states: Any, undos: dict[str, Any] | None = None, names: Sequence[str] = STEPS, **fields: Any) -> SagaLog:
    """A saga whose steps have these states; ``undos`` are the states of compensations that have begun."""
    undos = undos or {}
    entries = [
        LoggedStep(name, name, True, progress(state), progress(undos[name]) if name in undos else None)
        for name, state in zip(names, states, strict=True)
    ]
    return SagaLog("id", "1", b"{}", entries, **fields)


def titles(drawing: Drawing) -> list[tuple[str, str]]:
    return [(node.title, node.state) for node in drawing.nodes]


def node(drawing: Drawing, title: str) -> GraphNode:
    return next(node for node in drawing.nodes if node.title == title)


def ends_of(edge: Edge) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the line starts, and where it ends."""
    points: list[tuple[int, int]] = []
    for command, text in re.findall(r"([MHVQ])([-\d ]+)", edge.path):
        numbers = [int(number) for number in text.split()]
        x, y = points[-1] if points else (0, 0)
        points.append({"H": (numbers[0], y), "V": (x, numbers[0])}.get(command) or (numbers[-2], numbers[-1]))
    return points[0], points[-1]


def touches(at: tuple[int, int], box: GraphNode) -> bool:
    """Whether the point is on the border of the box, or a pixel outside."""
    x, y = at
    inside = box.x < x < box.x + box.width and box.y < y < box.y + box.height
    return not inside and box.x - 1 <= x <= box.x + box.width + 1 and box.y - 1 <= y <= box.y + box.height + 1


def edge_between(drawing: Drawing, first: str, second: str) -> Edge:
    found = [
        edge
        for edge in drawing.edges
        if touches(ends_of(edge)[0], node(drawing, first)) and touches(ends_of(edge)[1], node(drawing, second))
    ]
    (edge,) = found
    return edge


def draw_failed(undoable: Collection[str] | None = STEPS) -> Drawing:
    log = log_of(
        "done", "done", "failed", undos={"charge": "done", "reserve": "done"}, phase="compensating", failed_at="ship"
    )
    return draw(log, "failed", undoable)


@pytest.mark.parametrize("undoable", [(), ("reserve",), ("reserve", "charge"), STEPS])
def test_boxes_are_inside_of_the_drawing_and_do_not_overlap(undoable: Collection[str]) -> None:
    drawing = draw(log_of("done", "running", "pending"), "claimed", undoable)
    for box in drawing.nodes:
        assert 0 <= box.x < box.x + box.width <= drawing.width
        assert 0 < box.y < box.y + box.height < drawing.height
    for one, other in combinations(drawing.nodes, 2):
        assert (
            one.x + one.width < other.x
            or other.x + other.width < one.x
            or one.y + one.height < other.y
            or other.y + other.height < one.y
        ), (one, other)


def test_lines_meet_a_box_in_the_middle_of_its_sides() -> None:
    box = GraphNode(x=100, y=10, width=20, height=40, title="t", state="done")
    assert (box.mid_x, box.mid_y) == (110, 30)


def test_the_ends_stand_below_the_columns_of_steps_and_compensations() -> None:
    drawing = draw(log_of("pending", "pending", "pending"), "claimed", STEPS)
    assert node(drawing, "done").mid_x == node(drawing, "reserve").mid_x
    assert node(drawing, "failed").mid_x == node(drawing, "undo reserve").mid_x
    assert node(drawing, "undo ship").y == node(drawing, "ship").y
    assert drawing.height - node(drawing, "done").y - node(drawing, "done").height == node(drawing, "reserve").y


def test_steps_are_drawn_downwards_and_taken_up_to_the_one_that_runs() -> None:
    drawing = draw(log_of("done", "running", "pending"), "claimed", ())
    assert titles(drawing)[:3] == [("reserve", "done"), ("charge", "running"), ("ship", "pending")]
    taken = [
        edge_between(drawing, first, second).taken
        for first, second in (("reserve", "charge"), ("charge", "ship"), ("ship", "done"))
    ]
    assert taken == [True, False, False]
    assert len(drawing.edges) == 3
    assert not any(edge.undoing for edge in drawing.edges)


def test_a_step_that_is_done_leads_to_the_next_one_once_that_has_begun() -> None:
    drawing = draw(log_of("done", "pending", "pending"), "claimed", ())
    assert not edge_between(drawing, "reserve", "charge").taken


@pytest.mark.parametrize(
    ("state", "charge", "reserve", "taken"),
    [
        ("failed", "done", "done", True),
        ("claimed", "done", "done", False),
        ("failed", "done", "in_doubt", False),
    ],
)
def test_the_last_compensation_leads_to_the_end_once_the_saga_has_failed(
    state: str, charge: str, reserve: str, taken: bool
) -> None:
    undos = {"charge": charge, "reserve": reserve}
    log = log_of("done", "done", "failed", undos=undos, phase="compensating", failed_at="ship")
    assert edge_between(draw(log, state, ("reserve", "charge")), "undo reserve", "failed").taken is taken


def test_a_saga_that_is_done_has_taken_the_way_to_its_end() -> None:
    drawing = draw(log_of("done", "done", "done"), "done", STEPS)
    assert node(drawing, "done").state == "done"
    assert node(drawing, "failed").state == "pending"
    assert edge_between(drawing, "ship", "done").taken
    assert not edge_between(drawing, "undo reserve", "failed").taken


def test_a_saga_that_failed_went_back_over_its_compensations() -> None:
    drawing = draw_failed()
    assert node(drawing, "failed").state == "failed"
    assert node(drawing, "done").state == "pending"
    way = [("ship", "undo charge"), ("undo charge", "undo reserve"), ("undo reserve", "failed")]
    for first, second in way:
        edge = edge_between(drawing, first, second)
        assert (edge.taken, edge.undoing) == (True, True), (first, second)
    assert edge_between(drawing, "undo ship", "undo charge").undoing
    assert not edge_between(drawing, "ship", "done").taken


def test_a_compensation_that_did_not_end_leads_no_further() -> None:
    log = log_of("done", "done", "failed", undos={"charge": "failed"}, phase="compensating", failed_at="ship")
    drawing = draw(log, "claimed", ("reserve", "charge"))
    assert edge_between(drawing, "ship", "undo charge").taken
    assert not edge_between(drawing, "undo charge", "undo reserve").taken
    assert not edge_between(drawing, "undo reserve", "failed").taken


def test_a_first_step_that_failed_leads_to_the_end() -> None:
    log = log_of("failed", "pending", "pending", phase="compensating", failed_at="reserve")
    edge = edge_between(draw(log, "failed", STEPS), "reserve", "failed")
    assert (edge.taken, edge.undoing) == (True, True)


def test_without_a_compensation_that_is_known_only_those_that_have_begun_are_drawn() -> None:
    log = log_of("done", "done", "failed", undos={"charge": "done"}, phase="compensating", failed_at="ship")
    shown = [title for title, _ in titles(draw(log, "claimed", None))]
    assert shown == ["reserve", "charge", "ship", "undo charge", "done", "failed"]


def test_a_compensation_is_tied_to_its_step() -> None:
    drawing = draw(log_of("done", "pending", "pending"), "claimed", ("charge",))
    (pair,) = drawing.pairs
    start, end = ends_of(Edge(pair, taken=False))
    step, undo = node(drawing, "charge"), node(drawing, "undo charge")
    assert start[1] == end[1] == step.mid_y == undo.mid_y
    assert step.x + step.width < start[0] < end[0] < undo.x
    assert undo.shape == "undo"


@pytest.mark.parametrize(("attempts", "note"), [(0, "running"), (1, "running"), (2, "running, 2 attempts")])
def test_a_box_says_how_often_its_step_was_tried(attempts: int, note: str) -> None:
    log = SagaLog("id", "1", b"{}", [LoggedStep("one", "one", False, progress("running", attempts))])
    assert draw(log, "claimed", ()).nodes[0].note == note


@pytest.mark.parametrize("length", [MAX_TITLE_CHARACTERS, MAX_TITLE_CHARACTERS + 1])
def test_a_long_name_is_cut_to_its_box(length: int) -> None:
    log = log_of("pending", names=["s" * length])
    title = draw(log, "claimed", ()).nodes[0].title
    assert len(title) == MAX_TITLE_CHARACTERS == 15
    assert title.endswith("…") == (length > MAX_TITLE_CHARACTERS)

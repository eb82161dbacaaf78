"""Draws a saga: its steps and compensations as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .steps import Step


def draw_diagram(steps: Mapping[str, Step[Any]]) -> str:
    """Return a Mermaid flowchart: the steps in order, and from each failure the way back through the compensations."""
    names = list(steps)
    ids = {name: f"s{number}" for number, name in enumerate(names)}
    lines = ["flowchart LR", *(f'    {ids[name]}["{_escape(name)}"]' for name in names)]
    with_undo = [name for name in names if steps[name].undo is not None]
    lines += [f'    u{ids[name]}(["undo {_escape(name)}"])' for name in with_undo]
    lines += ["    done((done))", "    failed((failed))"]
    for name, after in zip(names, [*names[1:], None], strict=True):
        lines.append(f"    {ids[name]} --> {ids[after] if after else 'done'}")
    for number, name in enumerate(names):
        on_failure = next((f"u{ids[before]}" for before in reversed(names[:number]) if before in with_undo), "failed")
        lines.append(f"    {ids[name]} -. fails .-> {on_failure}")
        if name in with_undo:
            lines.append(f"    u{ids[name]} --> {on_failure}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")

"""One bar chart a table, as SVG by hand: it needs no library and reads well in a page of either colour."""

from __future__ import annotations

import math
import re
from xml.sax.saxutils import escape

from .measure import Result, number

ROW, LEFT, WIDTH = 28, 300, 420


def file_name(result: Result) -> str:
    """Where its plot is kept."""
    return re.sub(r"[^a-z0-9]+", "-", result.name.lower()).strip("-") + ".svg"


def svg(result: Result) -> str:
    """Horizontal bars of the medians with whiskers for the spread; ours in colour, its ratios as in the table."""
    top = max(line.high for line in result.lines)
    height = 56 + ROW * len(result.lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {height}" font-family="sans-serif" font-size="13">',
        "<style>text{fill:#333}.o{fill:#0b7285}.t{fill:#adb5bd}.w{stroke:#495057}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.w{stroke:#ced4da}}</style>",
        f'<text x="8" y="22" font-size="15" font-weight="bold">{escape(result.name)} ({escape(result.unit)})</text>',
    ]
    for place, line in enumerate(result.lines):
        y = 42 + ROW * place
        bar, low, high = (LEFT + WIDTH * value / top for value in (line.median, line.low, line.high))
        label = number(line.median)
        ratios = ", ".join(f"{ratio:.2f} x" for ratio in line.ratios.values())
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(line.name)}</text>',
            f'<rect class="{"o" if line.ours else "t"}" x="{LEFT}" y="{y}" width="{bar - LEFT:.1f}" height="18"/>',
            f'<path class="w" d="M{low:.1f} {y + 9}H{high:.1f}M{low:.1f} {y + 5}v8M{high:.1f} {y + 5}v8"/>',
            f'<text x="{high + 8:.1f}" y="{y + 14}">{label}{"  (" + ratios + ")" if ratios else ""}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def ratios(rows: list[tuple[str, float]]) -> str:
    """Horizontal bars from 1 (equal) to each ratio, on a logarithmic scale: twice as good is as long as half."""
    left, unit = 366, 46.0  # pixels; ``unit`` is a factor of two. Narrow, so that a phone shows it whole
    height = 64 + ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 650 {height}" font-family="sans-serif" font-size="15">',
        "<style>text{fill:#333}.o{fill:#0b7285}.t{fill:#adb5bd}.w{stroke:#495057}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.w{stroke:#ced4da}}</style>",
    ]
    for power in range(6):
        x = left + unit * power
        parts.append(f'<path class="w" opacity=".25" d="M{x} 30V{height - 16}"/>')
        parts.append(f'<text x="{x}" y="20" text-anchor="middle">{2**power} x</text>')
    for place, (words, ratio) in enumerate(rows):
        y = 42 + ROW * place
        end = left + unit * math.log2(ratio)
        begin, width = min(left, end), max(abs(end - left), 1.5)
        parts += [
            f'<text x="{left - 12}" y="{y + 14}" text-anchor="end">{escape(words)}</text>',
            f'<rect class="{"o" if ratio >= 1 else "t"}" x="{begin:.1f}" y="{y}" width="{width:.1f}" height="18"/>',
            f'<text x="{max(end, left) + 6:.1f}" y="{y + 14}">{ratio:.2g} x</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])

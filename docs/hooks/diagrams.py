"""The diagrams of the documentation: drawn from the ``mermaid`` blocks of its pages, in the site's colours.

``make pictures`` draws them, light and dark, into docs/images/diagrams, with mermaid in Chromium. The site is built
from these files, so no page loads a script for them. A test finds the blocks that have changed since they were drawn.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parents[1]
FOLDER: Final = DOCS / "images" / "diagrams"
MERMAID: Final = DOCS.parent / ".servers" / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"
#: The first line of a block says what it shows, for those who cannot see it: ``%% alt: …``.
BLOCK: Final = re.compile(r"^```mermaid\n%% alt: (?P<alt>[^\n]+)\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)
#: Mermaid's variables, for the two schemes of the site.
THEMES: Final[dict[str, dict[str, Any]]] = {
    "light": {
        "background": "#ffffff",
        "primaryColor": "#e6f4f1",
        "primaryTextColor": "#1f2328",
        "primaryBorderColor": "#00897b",
        "lineColor": "#57606a",
        "noteBkgColor": "#fff4d6",
        "noteTextColor": "#1f2328",
        "noteBorderColor": "#bf8700",
        "actorLineColor": "#8c959f",
    },
    "dark": {
        "darkMode": True,
        "background": "#1e2129",
        "primaryColor": "#12332f",
        "primaryTextColor": "#e6edf3",
        "primaryBorderColor": "#64d8cb",
        "lineColor": "#9da7b3",
        "noteBkgColor": "#3a2f10",
        "noteTextColor": "#e6edf3",
        "noteBorderColor": "#e3b341",
        "actorLineColor": "#6e7681",
    },
}


def file_name(source: str, scheme: str) -> str:
    """The name says what was drawn, so a block that has changed has no picture until it is drawn again."""
    return f"{hashlib.sha256(source.encode()).hexdigest()[:12]}-{scheme}.svg"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace each block by its pictures. Called by mkdocs."""
    up = "../" * page.file.src_uri.count("/")

    def pictures(match: re.Match[str]) -> str:
        return "\n".join(
            f"![{match['alt']}]({up}images/diagrams/{file_name(match['source'], scheme)}#only-{scheme})"
            for scheme in THEMES
        )

    return BLOCK.sub(pictures, markdown)


def sources() -> Iterator[str]:
    """The source of every diagram."""
    for page in sorted(DOCS.rglob("*.md")):
        for match in BLOCK.finditer(page.read_text()):
            yield match["source"]


def main() -> None:
    from playwright.sync_api import sync_playwright

    if not MERMAID.exists():
        sys.exit("mermaid is missing: run `make pictures`, which installs it into .servers")
    wanted = {file_name(source, scheme): (source, scheme) for source in sources() for scheme in THEMES}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.svg"):
        if old.name not in wanted:
            old.unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=str(MERMAID))
        for name, (source, scheme) in wanted.items():
            options = {
                "startOnLoad": False,
                "theme": "base",
                "themeVariables": {**THEMES[scheme], "fontFamily": "system-ui, sans-serif", "fontSize": "15px"},
                "htmlLabels": False,
                "flowchart": {"htmlLabels": False},
                "sequence": {"mirrorActors": False, "messageMargin": 28},
                "deterministicIds": True,
            }
            svg = page.evaluate(
                "async ([options, source]) => { mermaid.initialize(options);"
                " return (await mermaid.render('diagram', source)).svg }",
                [options, source],
            )
            (FOLDER / name).write_text(svg + "\n")
        browser.close()


if __name__ == "__main__":
    main()

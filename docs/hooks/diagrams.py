"""The diagrams of the documentation: drawn from the ``mermaid`` blocks of its pages, in the site's colours.

``make pictures`` draws them, light and dark, into docs/images/diagrams, with mermaid in Chromium. The site is built
from these files, so no page loads a script for them. A test finds the blocks that have changed since they were drawn.

A block that has ``click NODE "page.md"`` lines becomes a part of the page instead of an image, so that its links work.
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
#: Beside the packages of this Python, so that no other npm package is pruned with it.
MERMAID: Final = Path(sys.prefix) / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"
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
        "edgeLabelBackground": "#ffffff",
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
        "edgeLabelBackground": "#1e2129",
    },
}
#: Narrow actors and wrapped messages: three actors are still readable on a phone.
SEQUENCE: Final = {
    "mirrorActors": False,
    "wrap": True,
    "width": 118,
    "actorMargin": 26,
    "messageMargin": 30,
    "diagramMarginX": 8,
    "diagramMarginY": 8,
    "messageFontSize": 15,
    "noteFontSize": 14,
    "actorFontSize": 15,
    "actorFontWeight": 600,
}


def file_name(source: str, scheme: str) -> str:
    """The name says what was drawn, so a block that has changed has no picture until it is drawn again."""
    return f"{hashlib.sha256(source.encode()).hexdigest()[:12]}-{scheme}.svg"


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Replace each block by its pictures. Called by mkdocs."""
    up = "../" * page.file.src_uri.count("/")

    def url(link: re.Match[str]) -> str:
        return f'xlink:href="{files.get_file_from_path(link[1]).url_relative_to(page.file)}{link[2] or ""}"'

    def pictures(match: re.Match[str]) -> str:
        names = {scheme: file_name(match["source"], scheme) for scheme in THEMES}
        if not re.search(r"^\s*click ", match["source"], re.MULTILINE):
            return "\n".join(
                f"![{match['alt']}]({up}images/diagrams/{name}#only-{scheme})" for scheme, name in names.items()
            )
        return "\n".join(
            f'<div class="diagram {scheme}" role="img" aria-label="{match["alt"]}" data-search-exclude>'
            + re.sub(r'xlink:href="([^"#]+\.md)(#[^"]*)?"', url, (FOLDER / name).read_text().strip())
            + "</div>"
            for scheme, name in names.items()
        )

    return BLOCK.sub(pictures, markdown)


def sources() -> Iterator[str]:
    """The source of every diagram."""
    for page in sorted(DOCS.rglob("*.md")):
        for match in BLOCK.finditer(page.read_text()):
            yield match["source"]


def with_own_size(svg: str) -> str:
    """Give an SVG the size of its drawing: mermaid's fills the width of the page, whatever that is."""
    width, height = re.findall(r'viewBox="\S+ \S+ (\S+) (\S+)"', svg)[0]
    return svg.replace('width="100%"', f'width="{float(width):.0f}" height="{float(height):.0f}"', 1)


def main() -> None:
    from playwright.sync_api import sync_playwright

    if not MERMAID.exists():
        sys.exit("mermaid is missing: run `make pictures`, which installs it")
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
                "flowchart": {"htmlLabels": False, "nodeSpacing": 24, "rankSpacing": 36},
                "sequence": SEQUENCE,
                "deterministicIds": True,
            }
            svg = page.evaluate(
                "async ([options, id, source]) => { mermaid.initialize(options);"
                " return (await mermaid.render(id, source)).svg }",
                [options, f"d{name.removesuffix('.svg')}", source],
            )
            (FOLDER / name).write_text(with_own_size(svg) + "\n")
        browser.close()


if __name__ == "__main__":
    main()

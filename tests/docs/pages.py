"""The pages of the documentation as programs: every code block is run, in the order of its page.

- ``python``: run in one namespace per page; ``await`` may stand at the top level. With ``title="shop.py"``: a file.
- ``console``: each ``$ command`` is run, and prints what stands below it, in that order; ``…`` stands for anything.
  What ``export`` sets stays set.
  After a comment ``<!-- background -->`` it runs until the page ends; after ``<!-- exits 1 -->`` it must exit so.
- ``json``, ``yaml``, ``toml``: parsed; with a title they are files as well. ``sql``: run on the database in its title.
- ``text`` is a picture, and so is ``mermaid``: docs/hooks/diagrams.py draws it. Nothing else is allowed, so that
  nothing goes unseen.

Servers are named as a reader would (`SERVERS`), and stand for the real ones of the tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

#: What a page writes, and the fixture that has the address of the real one.
SERVERS = {
    "redis://localhost:6379": "redis_url",
    "postgresql://localhost/shop": "postgres_url",
    "mysql://localhost/shop": "mariadb_url",
    "amqp://localhost": "rabbitmq_url",
    "nats://localhost": "nats_url",
    "kafka://localhost": "kafka_url",
    "sqs://?region=eu-west-1": "one_sqs_url",
    "pubsub://my-project": "pubsub_url",
    "dynamodb://effectonce?region=eu-west-1": "dynamodb_url",
}
RUN = ("python", "console", "sql")
PARSED = ("json", "yaml", "toml")
PICTURES = ("text", "mermaid")

_FENCE = re.compile(
    r"^(?P<indent>[ ]*)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL
)
_TITLE = re.compile(r'title="([^"]+)"')
_EXITS = re.compile(r"<!-- exits (\d+) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    code: str
    line: int
    background: bool = False
    exits: int = 0


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in their order, without their indentation."""
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()].rstrip()
        language, _, rest = match["info"].strip().partition(" ")
        title = _TITLE.search(rest)
        exits = _EXITS.search(before)
        found.append(
            Block(
                language,
                title[1] if title else None,
                re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE),
                text.count("\n", 0, match.start()) + 2,
                background=before.endswith("<!-- background -->"),
                exits=int(exits[1]) if exits else 0,
            )
        )
    return found


def headings(page: Path) -> set[str]:
    """The anchors of a page, what it includes from other files among them."""
    text = re.sub(r'^--8<-- "(.+)"$', lambda match: (ROOT / match[1]).read_text(), page.read_text(), flags=re.MULTILINE)
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).strip().replace(" ", "-") for each in found}


def pages() -> list[Path]:
    """All but the pages of the checker's rules, whose blocks the checker looks at: lint/tests/test_rules.py."""
    rules = set((DOCS / "rules").glob("*.md")) - {DOCS / "rules" / "index.md"}
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for page in sorted(DOCS.rglob("*.md")) if page not in rules),
    ]


def servers_of(found: list[Block]) -> dict[str, str]:
    """Address on the page → fixture, for those that its blocks name."""
    code = "".join(block.code for block in found if block.language in (*RUN, *PARSED))
    return {address: fixture for address, fixture in SERVERS.items() if address in code}


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """Each command of a console block, with the lines that it is to print."""
    found: list[tuple[str, list[str]]] = []
    for line in block.code.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        elif found and line.strip():
            found[-1][1].append(line.rstrip())
    return found


def missing_line(printed: str, wanted: list[str]) -> str | None:
    """The first of the wanted lines that was not printed after the one before it."""
    lines = iter(printed.splitlines())
    for want in wanted:
        if want.strip() == "…":
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in want.strip().split("…")))
        if not any(pattern.fullmatch(line.strip()) for line in lines):
            return want
    return None

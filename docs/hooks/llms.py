"""The documentation for language models: ``llms.txt``, a list of the pages, and ``llms-full.txt``, all of their text.

The build writes both beside the pages (https://llmstxt.org), in the order of the navigation. The reference of the
public names is read off the code, as mkdocstrings does it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import griffe

ROOT: Final = Path(__file__).parents[2]
#: What to know before any page. The list of pages follows it.
INTRODUCTION: Final = """\
# effectonce

> A Python toolkit that turns at-least-once delivery into an exactly-once effect. It never promises exactly-once
> delivery: it states, per mode, what can be lost and what can be doubled. Core: standard library and msgspec;
> Python >= 3.11.

Choose by where the effect lives:

- a row in a database you own: mode T, `eo.Inbox(scope=...)`, `inbox.first(conn, message)` in your own transaction
- a call to an API that keeps idempotency keys: mode K, `eo.Intents(store, scope=...)`,
  `@intents.operation("stripe", "charge")`
- a call to an API without keys: mode I, the same with `without_key="at-most-once"`
- anything else: mode L, `@eo.once(store, scope=..., key=...)`
- already idempotent: mode S, `@eo.once(..., mode="seen")`, or nothing

Never key on a delivery tag, receipt handle, MessageId, offset, `uuid4()` or `now()`. Never ack `InProgress` or
`StoreUnavailable`.
"""

_SNIPPET: Final = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)
_MERMAID: Final = re.compile(r"^```mermaid\n%% alt: ([^\n]+)\n.*?^```$", re.MULTILINE | re.DOTALL)
_OBJECT: Final = re.compile(r"^::: (\S+)$", re.MULTILINE)
_FENCE: Final = re.compile(r"^[ ]*```.*?^[ ]*```[ ]*$", re.MULTILINE | re.DOTALL)
_pages: list[Any] = []


class Page(NamedTuple):
    section: str
    title: str
    url: str
    text: str


def on_nav(nav: Any, **_: Any) -> None:
    """Remember the pages of the navigation. Called by mkdocs."""
    _pages[:] = nav.pages


def on_post_build(config: Any, **_: Any) -> None:
    """Write both files into the site. Called by mkdocs."""
    site = Path(config.site_dir)
    pages = [
        Page(
            page.ancestors[-1].title if page.ancestors else "Pages",
            page.title,
            page.url or "index.html",
            Path(page.file.abs_src_path).read_text(),
        )
        for page in _pages
    ]
    (site / "llms.txt").write_text(contents(pages))
    (site / "llms-full.txt").write_text(full_text(pages))


def contents(pages: list[Page]) -> str:
    """List the pages by section, each with its first sentence."""
    lines = [INTRODUCTION, "- [All pages in one file](llms-full.txt)"]
    section = ""
    for page in pages:
        if page.section != section:
            section = page.section
            lines.append(f"\n## {section}\n")
        lines.append(f"- [{page.title}]({page.url}): {first_sentence(page.text)}".removesuffix(": "))
    return "\n".join(lines) + "\n"


def full_text(pages: list[Page]) -> str:
    """Join the pages into one text: pictures as what they show, and the public names with their docstrings."""
    return "\n\n".join([INTRODUCTION, *(f"<!-- {page.url} -->\n\n{_plain(page.text)}" for page in pages)]) + "\n"


def first_sentence(text: str) -> str:
    """Return the first sentence of a page below its heading, without links."""
    body = _FENCE.sub("", text.partition("# ")[2].partition("\n")[2])
    paragraphs = (" ".join(paragraph.split()) for paragraph in body.split("\n\n"))
    prose = next((paragraph for paragraph in paragraphs if re.match(r"[\w*`\[(]", paragraph)), "")
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", prose)
    return re.split(r"(?<=[.!?])\s", plain)[0].removesuffix(":")


def _plain(text: str) -> str:
    text = _SNIPPET.sub(lambda match: (ROOT / match[1]).read_text(), text)
    text = _MERMAID.sub(r"(Picture: \1)", text)
    return _OBJECT.sub(lambda match: describe_object(match[1]), text).strip()


_loader: griffe.GriffeLoader | None = None


def describe_object(path: str) -> str:
    """Return the signature and the docstring of a public name, and of its public methods."""
    global _loader
    if _loader is None:
        _loader = griffe.GriffeLoader(search_paths=[ROOT / "src"])
        _loader.load("effectonce")
        _loader.resolve_aliases(implicit=True)
    found: Any = _loader.modules_collection[path]
    members = found.members.values() if found.is_class or found.is_module else ()
    public = [member for member in members if member.name[0] != "_" and member.has_docstring]
    return "\n\n".join(_signature(each) for each in (found, *public))


def _signature(found: Any) -> str:
    call = found.signature() if found.is_function else found.path
    return f"```python\n{call}\n```\n\n{found.docstring.value if found.docstring else ''}".rstrip()

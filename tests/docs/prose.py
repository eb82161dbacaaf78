"""The linter of our prose, a part of `make check`: ``python -m tests.docs.prose``.

It runs proselint, with words of our own, over the pages of the documentation, their code left out. Our words are also
looked for in the comments of that code, in the comments, docstrings and messages of the package and the examples, and
in the labels of the dashboard.
"""

from __future__ import annotations

import functools
import io
import itertools
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proselint.checks import __register__ as all_checks
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, types
from proselint.tools import LintFile

ROOT: Final = Path(__file__).parents[2]

#: What a colleague would not say, and what to say instead.
WORDS: Final = {
    "nobody": "the actor, or the passive voice",
    "somebody": "someone, or the actor",
    "whoever": "the actor",
    "gone on with": "resumed",
    "go on with": "resume, or continue with",
    "goes on with": "resumes, or continues with",
    "the day on which": "when",
    "what becomes of": "what happens to",
    "what came of": "the result of",
    "what is so": "what is true",
    "to be had": "available",
    "mint": "make",
    "minted": "made",
    "anew": "again",
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "heir": "next owner",
    "in earnest": "in production",
    "what would become of": "what would happen to",
    "also when": "even when",
    "also if": "even if",
    "also while": "even while",
    "shall": "must, or should",
    "told of": "reported",
    "patience": "time limit",
    "leftovers": "what is unfinished",
    "chores": "background tasks",
    "upkeep": "recovery, or clean-up",
    "desk": "dashboard",
}
#: "X is no Y" is not English, unless Y is a quantity. "There is no Y" is.
_IS_NO: Final = re.compile(
    r"\b(?!there\b)\w+`{0,2}\s+(?:is|are|was|were)\s+no\s+(?!(?:longer|more|less|fewer|better|worse|other|\w+er)\b)\w+",
    re.IGNORECASE,
)
#: proselint's own checks, without those that do not fit technical pages ("exactly-once" is right, and straight quotes
#: are what keyboards and code have), and ours. The more specific names come first.
CHECKS: Final = {
    "misc.phrasal_adjectives": False,
    **DEFAULT["checks"],
    "typography": False,
    "lexical_illusions": False,
    "needless_variants": False,
    "effectonce": True,
}

_FENCED = re.compile(r"(^[ ]*```.*?^[ ]*```[ ]*$)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^[ ]*```.*?^[ ]*```[ ]*$|`[^`\n]+`|\]\([^)\n]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)


def pages() -> Iterator[tuple[Path, str]]:
    """Each page, its code and link targets blanked out."""
    for page, text in _texts():
        yield page, _CODE.sub(lambda match: _blank(match[0]), text)


def comments() -> Iterator[tuple[Path, str]]:
    """Of each page, the comments in its code alone, each in its line."""
    for page, text in _texts():
        yield (
            page,
            "".join(
                _blank(part)
                if is_prose
                else re.sub(r"^[^#\n]+", lambda match: _blank(match[0]), part, flags=re.MULTILINE)
                for is_prose, part in zip(itertools.cycle((True, False)), _FENCED.split(text), strict=False)
            ),
        )


def _texts() -> Iterator[tuple[Path, str]]:
    folders = (ROOT / "docs", ROOT / "examples", ROOT / "deploy")
    for page in sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]):
        yield page, page.read_text()


def _blank(text: str) -> str:
    return re.sub(r"\S", " ", text)


def sources() -> Iterator[tuple[Path, str]]:
    """Of each module, its comments and strings alone, each in its line; and each template of the dashboard."""
    for folder in (ROOT / "src", ROOT / "lint" / "src", ROOT / "examples"):
        for module in sorted(folder.rglob("*.py")):
            text = module.read_text()
            lines = [""] * (text.count("\n") + 2)
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type in (tokenize.COMMENT, tokenize.STRING) and (" " in token.string):
                    for offset, line in enumerate(token.string.split("\n")):
                        lines[token.start[0] - 1 + offset] += f" {line}"
            yield module, "\n".join(lines)
        for template in sorted(folder.rglob("*.html")):
            yield template, template.read_text()


@functools.cache
def register_checks() -> None:
    """Register proselint's checks and ours. Its registry is one for the process, and keeps what is registered twice."""
    registry = CheckRegistry()
    registry.register_many(all_checks)
    registry.register(
        Check(
            check_type=types.PreferredFormsSimple(items=WORDS),
            path="effectonce.words",
            message="Write '{}' instead of '{}'.",
            flags=CheckFlags(allow_quotes=True),
        )
    )


def findings() -> Iterator[str]:
    register_checks()
    ours_alone = {"effectonce": True}
    for files, checks in ((pages(), CHECKS), (comments(), ours_alone), (sources(), ours_alone)):
        for path, text in files:
            for found in LintFile(str(path), text).lint({**DEFAULT, "checks": checks}):
                yield f"{path.relative_to(ROOT)}:{found.pos[0]}: {found.check_result.message}"
            for match in _IS_NO.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path.relative_to(ROOT)}:{line}: Write 'is not a …' instead of '{' '.join(match[0].split())}'."


def main() -> int:
    found = list(findings())
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures the checker on the labelled handlers of public repositories: precision and recall, with intervals.

`labels.jsonl` names handlers by repository, commit, path and function, each with the verdict of a reader who had not
seen what the checker says: `flag` (an effect doubles, and nothing prevents it), `arguable`, or `clear`. The code is
not in this repository. Mirror the repositories first, each as a git directory in `MIRRORS/OWNER+NAME`, then:

    python lint/tests/real/measure.py MIRRORS CHECKOUTS

The script writes the Python files of each commit below CHECKOUTS, checks the files with labels, and prints a table.
An arguable handler that is flagged counts as half right. Repositories of the split `held-out` were not looked at while
rules were written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from math import sqrt
from pathlib import Path

from msgspec import Struct

from effectonce_lint import engine
from effectonce_lint.config import Config
from effectonce_lint.findings import Finding

LABELS = Path(__file__).with_name("labels.jsonl")
CHECKED_OUT = (".py", ".toml", ".cfg")
WRONG, HALF, RIGHT = 0.0, 0.5, 1.0
WORTH = {"flag": RIGHT, "arguable": HALF, "clear": WRONG}
"""How right it is to flag a handler with a verdict."""


class LabelledHandler(Struct, frozen=True):
    """One handler, and what its reader said of it."""

    repo: str
    commit: str
    path: str
    function: str
    line: int
    split: str
    verdict: str
    reason: str


def read_labels() -> list[LabelledHandler]:
    """The labels, in the order of the file."""
    return [LabelledHandler(**json.loads(line)) for line in LABELS.read_text().splitlines()]


def wilson_interval(right: float, total: float) -> tuple[float, float]:
    """The 95 % interval of a share; everything where nothing was counted."""
    if not total:
        return 0.0, 1.0
    z, share = 1.96, right / total
    middle = share + z * z / (2 * total)
    reach = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    below = 1 + z * z / total
    return max(0.0, (middle - reach) / below), min(1.0, (middle + reach) / below)


def check_out(mirrors: Path, checkouts: Path, repo: str, commit: str) -> Path | None:
    """Write the Python files of a commit below ``checkouts``. None: there is no mirror of it."""
    name = repo.replace("/", "+")
    folder = checkouts / name
    if (folder / ".done").exists():
        return folder
    git = next((path for path in _git_directories(mirrors / name) if (path / "HEAD").exists()), None)
    if git is None:
        return None
    for path, content in _files_of(git, commit):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (folder / ".done").write_text(commit)
    return folder


def _git_directories(mirror: Path) -> tuple[Path, ...]:
    return mirror, mirror / ".git", mirror / "repo", mirror / "repo" / ".git"


def _files_of(git: Path, commit: str) -> Iterator[tuple[str, bytes]]:
    """The files of a commit that the checker may read. Files that the mirror lacks are left out."""
    listing = subprocess.run(["git", "-C", git, "ls-tree", "-r", "-z", commit], check=True, capture_output=True).stdout
    wanted = []
    for row in filter(None, listing.decode("utf-8", "replace").split("\0")):
        meta, path = row.split("\t", 1)
        mode, kind, digest = meta.split()
        if kind == "blob" and mode != "120000" and path.endswith(CHECKED_OUT):
            wanted.append((digest, path))
    digests = "".join(f"{digest}\n" for digest, _ in wanted).encode()
    blobs = subprocess.run(["git", "-C", git, "cat-file", "--batch"], check=True, input=digests, capture_output=True)
    position = 0
    for _, path in wanted:
        end = blobs.stdout.index(b"\n", position)
        head, position = blobs.stdout[position:end].split(), end + 1
        if head[-1] == b"missing":
            continue
        size = int(head[2])
        yield path, blobs.stdout[position : position + size]
        position += size + 1


def check_handlers(folder: Path, handlers: list[LabelledHandler]) -> dict[LabelledHandler, list[Finding]]:
    """The findings of the default rules on each handler of one repository."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        config = Config()
        project = engine.open_project(["."], config)
        findings = {}
        for path in sorted({handler.path for handler in handlers}):
            full_path = str(folder / path)
            result = engine.check_file(project, full_path, is_named=False)
            for handler in (handler for handler in handlers if handler.path == path):
                symbol = "the module" if handler.function == "<module>" else handler.function
                findings[handler] = [
                    finding
                    for finding in result.findings
                    if finding.symbol == symbol and engine.is_shown(finding, config)
                ]
        return findings
    finally:
        os.chdir(before)


def print_scores(findings: dict[LabelledHandler, list[Finding]]) -> None:
    """The table of precision and recall, by split and by rule."""
    for split in ("building", "held-out"):
        handlers = [handler for handler in findings if handler.split == split]
        flagged = [handler for handler in handlers if findings[handler]]
        wanted = [handler for handler in handlers if handler.verdict == "flag"]
        right = sum(WORTH[handler.verdict] for handler in flagged)
        reached = sum(bool(findings[handler]) for handler in wanted)
        print(f"{split}: {len(handlers)} handlers {dict(Counter(handler.verdict for handler in handlers))}")
        print(f"  precision {_share(right, len(flagged))}")
        print(f"  recall    {_share(reached, len(wanted))}")
        by_rule = defaultdict(list)
        for handler in flagged:
            for rule in {finding.rule for finding in findings[handler]}:
                by_rule[rule].append(WORTH[handler.verdict])
        for rule, worths in sorted(by_rule.items()):
            print(f"  {rule:<8}{_share(sum(worths), len(worths))}")


def _share(part: float, total: int) -> str:
    low, high = wilson_interval(part, total)
    share = f"{part / total:.2f}" if total else "-"
    return f"{share} ({part:g} of {total}; 95 %: {low:.2f}-{high:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--split", choices=("building", "held-out"), help="only the repositories of this split")
    parser.add_argument("--list", action="store_true", help="list the handlers where the checker and the reader differ")
    options = parser.parse_args()
    by_repo = defaultdict(list)
    for handler in read_labels():
        if options.split in (None, handler.split):
            by_repo[handler.repo, handler.commit].append(handler)
    folders = {}
    for repo, commit in by_repo:
        folders[repo, commit] = check_out(options.mirrors, options.checkouts.absolute(), repo, commit)
        if folders[repo, commit] is None:
            print(f"no mirror of {repo}: {len(by_repo[repo, commit])} handlers left out", file=sys.stderr)
    known = [(folder, by_repo[key]) for key, folder in folders.items() if folder is not None]
    with ProcessPoolExecutor() as pool:
        parts = pool.map(check_handlers, [folder for folder, _ in known], [handlers for _, handlers in known])
        findings = {handler: found for part in parts for handler, found in part.items()}
    print_scores(findings)
    for handler in findings if options.list else ():
        rules = " ".join(sorted(finding.rule for finding in findings[handler]))
        if bool(rules) != (handler.verdict == "flag") and (rules or handler.verdict == "flag"):
            where = f"{handler.repo} {handler.path} {handler.function}"
            print(f"{handler.verdict:<9}{rules or '-':<12}{where}: {handler.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

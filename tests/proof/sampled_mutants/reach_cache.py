"""Which lines the tests reach, without a mutant. A file of tests is measured once, and again when it has changed, or
what it uses of the tests' helpers and of the code.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from .checkout_copy import PACKAGE, ROOT, CheckoutCopy
from .pytest_process import FAILED, NO_TESTS, PASSED, run_tests
from .selection import Reach

FOLDER: Final = ROOT / ".mutants_cache"
MAX_RUNS: Final = 3  # of a test that fails without a mutant
RECORDER: Final = "tests/proof/sampled_mutants/selection.py"


class ReachCache:
    """The reach of each file of tests below ``root``, which is a copy of the checkout.

    An entry is a line with the digests of what it rests on (`_sources`), and then the reach itself, compressed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._digests: dict[str, str] = {}

    def missing(self, test_files: Iterable[str]) -> list[str]:
        """Return those of ``test_files`` that have to be measured."""
        return [file for file in test_files if not self._is_current(file)]

    def measure(self, test_files: Sequence[str], copy: CheckoutCopy, servers: str, name: str) -> None:
        """Run ``test_files`` and keep what they reach. A test that fails again and again is left out, with a message:
        its failure would prove nothing.
        """
        left = list(test_files)
        for round_number in range(1, MAX_RUNS + 1):
            reach = self._run(left, copy, servers, name)
            failed = {test.partition("::")[0] for test in reach.failed}
            for file in left:
                if file not in failed or round_number == MAX_RUNS:
                    self._save(file, reach)
            left = [file for file in left if file in failed]
            if not left:
                return
        print("left out, they fail without a mutant:", *reach.failed, sep="\n    ", file=sys.stderr)

    def load(self, test_files: Iterable[str]) -> Reach:
        """Return the reach of all ``test_files`` together."""
        total = Reach({}, {}, [])
        for file in test_files:
            _, _, packed = self._entry(file).read_bytes().partition(b"\n")
            entry = msgspec.json.decode(zlib.decompress(packed), type=Reach)
            total.seconds |= entry.seconds
            for path, lines in entry.tests.items():
                for line, tests in lines.items():
                    total.tests.setdefault(path, {}).setdefault(line, []).extend(tests)
        return total

    def _run(self, test_files: Sequence[str], copy: CheckoutCopy, servers: str, name: str) -> Reach:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            run = run_tests(copy, servers, name, test_files, max_failures=0, EFFECTONCE_REACH=file.name)
            if run.exit_code not in (PASSED, FAILED, NO_TESTS):
                raise SystemExit(f"the tests cannot run without a mutant:\n{run.output[-3000:]}")
            return msgspec.json.decode(Path(file.name).read_bytes(), type=Reach)

    def _save(self, test_file: str, reach: Reach) -> None:
        own = {test for test in reach.seconds if test.partition("::")[0] == test_file} - set(reach.failed)
        kept = own | {""}
        tests = {
            path: {line: tests for line, all_tests in lines.items() if (tests := [t for t in all_tests if t in kept])}
            for path, lines in reach.tests.items()
        }
        seconds = {test: reach.seconds[test] for test in own}
        self._write(test_file, Reach(seconds, tests, []))

    def _write(self, test_file: str, reach: Reach) -> None:
        digests = {source: self._digest(source) for source in self._sources(test_file, reach)}
        entry = self._entry(test_file)
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.write_bytes(msgspec.json.encode(digests) + b"\n" + zlib.compress(msgspec.json.encode(reach), level=1))

    def _is_current(self, test_file: str) -> bool:
        if not self._entry(test_file).exists():
            return False
        header, _, _ = self._entry(test_file).read_bytes().partition(b"\n")
        digests = msgspec.json.decode(header, type=dict[str, str])
        return all(self._digest(source) == digest for source, digest in digests.items())

    def _sources(self, test_file: str, reach: Reach) -> list[str]:
        """The files of which a change may change the reach of ``test_file``: itself, the helpers of the tests, and the
        modules that its tests run functions of. What a module does when it is imported is left out."""
        modules = [path for path, lines in reach.tests.items() if any(t for tests in lines.values() for t in tests)]
        return [RECORDER, *self._behind(test_file), *(str(PACKAGE / path) for path in modules)]

    def _behind(self, test_file: str) -> list[str]:
        """``test_file``, what it imports of the tests, and each `conftest.py` above it with what that imports. The
        harness is left out: which server it starts, and how, changes nothing that a test reaches."""
        above = [folder / "conftest.py" for folder in Path(test_file).parents]
        left = [Path(test_file), *(file for file in above if (self.root / file).exists())]
        files = dict.fromkeys(left)
        while left:
            new = [
                file
                for file in _imported_tests(left.pop(), self.root)
                if file not in files and "harness" not in file.parts
            ]
            files.update(dict.fromkeys(new))
            left += new
        return [str(file) for file in files]

    def _entry(self, test_file: str) -> Path:
        return FOLDER / f"{test_file}.reach"

    def _digest(self, source: str) -> str:
        """Of a file below ``root``; "" if there is none."""
        if source not in self._digests:
            file = self.root / source
            self._digests[source] = sha256(file.read_bytes()).hexdigest()[:12] if file.exists() else ""
        return self._digests[source]


def _imported_tests(file: Path, root: Path) -> list[Path]:
    """The modules of tests/ that ``file`` imports; paths are relative to ``root``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((root / file).read_bytes())):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                package = ".".join(file.parts[:-level]) if level else ""
                start = ".".join(filter(None, (package, module)))
                names.update((start, *(f"{start}.{alias.name}" for alias in aliases)))
    paths = (Path(*name.split(".")) for name in sorted(names) if name.startswith("tests"))
    candidates = (candidate for path in paths for candidate in (path.with_suffix(".py"), path / "__init__.py"))
    return [candidate for candidate in candidates if (root / candidate).exists()]

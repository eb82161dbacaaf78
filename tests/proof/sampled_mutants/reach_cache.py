"""Which lines the tests reach, without a mutant. It is measured once, and again when code or tests have changed."""

from __future__ import annotations

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


class ReachCache:
    """The reach of each file of tests below ``root``, which is a copy of the checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        tool = root / "tests/proof/sampled_mutants"  # a longer list of equivalents changes the reach of no test
        helpers = (
            file for file in (root / "tests").rglob("*.py") if not file.name.startswith("test_") and file.parent != tool
        )
        recorder = tool / "selection.py"
        self._shared_digest = self._digest([*(root / PACKAGE).rglob("*.*"), *helpers, recorder])

    def missing(self, test_files: Iterable[str]) -> list[str]:
        """Return those of ``test_files`` that have to be measured."""
        return [file for file in test_files if not self._entry(file).exists()]

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
            entry = msgspec.json.decode(zlib.decompress(self._entry(file).read_bytes()), type=Reach)
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
        entry = self._entry(test_file)
        entry.parent.mkdir(parents=True, exist_ok=True)
        for outdated in entry.parent.glob(f"{Path(test_file).name}.*"):
            outdated.unlink()
        entry.write_bytes(zlib.compress(msgspec.json.encode(Reach(seconds, tests, [])), level=1))

    def _entry(self, test_file: str) -> Path:
        return FOLDER / f"{test_file}.{self._digest([self.root / test_file])}.{self._shared_digest}"

    def _digest(self, files: Iterable[Path]) -> str:
        total = sha256()
        for file in sorted(files):
            if file.is_file() and "__pycache__" not in file.parts:
                total.update(f"{file.relative_to(self.root)}\0".encode() + sha256(file.read_bytes()).digest())
        return total.hexdigest()[:12]

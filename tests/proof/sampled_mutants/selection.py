"""A plugin of pytest: it records which lines of the package each test reaches, or selects the tests to run.

EFFECTONCE_REACH=FILE    write a `Reach` there
EFFECTONCE_TESTS=FILE    run the tests that are named there, one per line, in this order
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import coverage
import msgspec
import pytest

from .checkout_copy import PACKAGE


class Reach(msgspec.Struct):
    """What a run without a mutant has shown about the tests."""

    seconds: dict[str, float]  # by test
    tests: dict[str, dict[int, list[str]]]  # by file inside the package and line; "" stands for an import
    failed: list[str]


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get("EFFECTONCE_TESTS"):
        config.pluginmanager.register(_Selection(Path(path).read_text().splitlines()))
    if path := os.environ.get("EFFECTONCE_REACH"):
        config.pluginmanager.register(_Recording(Path(path)))


class _Selection:
    def __init__(self, names: list[str]) -> None:
        self._names = names

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        cases = defaultdict(list)
        for item in items:
            cases[item.nodeid.partition("[")[0]].append(item)
        # A mutant may change the values that a test is parametrised with, and so its name: then all of its cases run.
        selected = (by_name.get(name) or cases[name.partition("[")[0]] for name in self._names)
        items[:] = dict.fromkeys(item for found in selected for item in (found if isinstance(found, list) else [found]))


class _Recording:
    """Records what the tests of this process reach, and forks of it that end by `os._exit`, as those of tests do. What
    other processes reach, which tests start as programs, is not seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forks = path.with_suffix(".forks")
        self._forks.mkdir()
        self._process, self._test = os.getpid(), ""
        self._exit = os._exit
        os._exit = self._leave
        self._seconds: dict[str, float] = {}
        self._failed: list[str] = []
        self._package = Path.cwd() / PACKAGE
        self._coverage = coverage.Coverage(data_file=None, include=[f"{self._package}/*"])
        self._coverage.start()
        self._trace = sys.gettrace()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if sys.gettrace() is not self._trace:  # a test has set its own
            self._coverage.stop()
            self._coverage.start()
            self._trace = sys.gettrace()
        self._test = item.nodeid
        self._coverage.switch_context(item.nodeid)
        started = time.perf_counter()
        result = yield
        self._seconds[item.nodeid] = time.perf_counter() - started
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    def _leave(self, status: int) -> NoReturn:
        """`os._exit`, which in a fork writes the lines that its test has reached by then, there or before the fork."""
        if os.getpid() != self._process and self._test:
            with suppress(Exception):  # as the fork is told to end, it does
                data = self._coverage.get_data()
                data.set_query_context(self._test)
                lines = {self._inside(file): data.lines(file) or [] for file in data.measured_files()}
                (self._forks / str(os.getpid())).write_bytes(msgspec.json.encode((self._test, lines)))
        self._exit(status)

    def _inside(self, file: str) -> str:
        return str(Path(file).relative_to(self._package))

    def pytest_sessionfinish(self) -> None:
        os._exit = self._exit
        self._coverage.stop()
        data = self._coverage.get_data()
        tests = {self._inside(file): data.contexts_by_lineno(file) for file in data.measured_files()}
        for fork in self._forks.iterdir():
            test, lines_by_path = msgspec.json.decode(fork.read_bytes(), type=tuple[str, dict[str, list[int]]])
            for path, lines in lines_by_path.items():
                for line in lines:
                    of_line = tests.setdefault(path, {}).setdefault(line, [])
                    if test not in of_line:
                        of_line.append(test)
        shutil.rmtree(self._forks)
        self._path.write_bytes(msgspec.json.encode(Reach(self._seconds, tests, self._failed)))

"""A plugin of pytest: it records which lines of the package each test reaches, or selects the tests to run.

EFFECTONCE_REACH=FILE    write a `Reach` there
EFFECTONCE_TESTS=FILE    run the tests that are named there, one per line, in this order
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import msgspec
import pytest

from .checkout_copy import PACKAGE


class Reach(msgspec.Struct):
    """What a run without a mutant has shown about the tests."""

    seconds: dict[str, float]  # by test
    tests: dict[str, dict[int, list[str]]]  # by file inside the package and line; "" stands for an import


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
        items[:] = [by_name[name] for name in self._names]


class _Recording:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}
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
        self._coverage.switch_context(item.nodeid)
        started = time.perf_counter()
        result = yield
        self._seconds[item.nodeid] = time.perf_counter() - started
        return result

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        tests = {
            str(Path(file).relative_to(self._package)): data.contexts_by_lineno(file) for file in data.measured_files()
        }
        self._path.write_bytes(msgspec.json.encode(Reach(self._seconds, tests)))

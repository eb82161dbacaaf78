"""Which tests `make test` runs, and which are left to `make test-all`: every test is in exactly one of the two.

`make test` holds every promise once, on a real server. What repeats one is marked `long`, by the test itself or here:

    @pytest.mark.long                        soaks, whole explorations, large examples
    @pytest.mark.quick_on("redis", "sync")   of its parametrisations only these are quick; the others repeat them
    @pytest.mark.quick_once                  one of its parametrisations is quick, another one for the next test

The marks stand on a test, a class or a module (`pytestmark`); the nearest one counts.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from zlib import crc32

import pytest


def mark_long_tests(items: Iterable[pytest.Item]) -> None:
    """Mark as `long` the parametrisations that repeat what a quick one holds."""
    parametrised = [item for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    for name, cases in groupby(sorted(parametrised, key=_test_name), _test_name):
        several = list(cases)
        quick = _quick_cases(name, several)
        for case in several:
            if case not in quick:
                case.add_marker(pytest.mark.long)


def _test_name(item: pytest.Function) -> str:
    return item.nodeid.partition("[")[0]


def _quick_cases(name: str, cases: Sequence[pytest.Function]) -> Sequence[pytest.Function]:
    mark = next((mark for mark in cases[0].iter_markers() if mark.name in ("quick_on", "quick_once")), None)
    if mark is None:
        return cases
    if mark.name == "quick_once":
        return [cases[crc32(name.rpartition("/")[2].encode()) % len(cases)]]
    # A test of the module that knows none of these words is not about what they tell apart.
    return [case for case in cases if any(_has_part(case, word) for word in mark.args)] or cases


def _has_part(case: pytest.Function, word: str) -> bool:
    """Whether ``word`` is the case's whole id, or a part of it between `-` or `+`."""
    return re.search(rf"(?:^|[-+]){re.escape(word)}(?:$|[-+])", case.callspec.id) is not None

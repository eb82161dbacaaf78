"""The pytest plugin: pytest loads it wherever effectonce is installed; it does nothing until a test uses it.

Fixtures: ``manual_clock``, and on that clock ``memory_store``, an empty store, and ``memory_broker``, a `TestBroker`.
Marker::

    @pytest.mark.idempotent            # the body of this test runs twice, on the same fixtures
    @pytest.mark.idempotent(times=5)

so that its assertions must hold however often its message is delivered.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # pytest loads this for every project: only what a test uses is imported
    from effectonce.store import Store

    from .broker import TestBroker
    from .clock import ManualClock


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "idempotent(times=2): run the test's body that often, on the same fixtures (effectonce)"
    )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    marker = pyfuncitem.get_closest_marker("idempotent")
    if marker is not None:
        times = marker.kwargs.get("times", 2)
        if type(times) is not int or times < 1 or marker.args or set(marker.kwargs) - {"times"}:
            raise pytest.UsageError("write @pytest.mark.idempotent or @pytest.mark.idempotent(times=5)")
        pyfuncitem.obj = _repeat_body(pyfuncitem.obj, times)
    return (yield)


def _repeat_body(function: Any, times: int) -> Any:
    if inspect.iscoroutinefunction(function):

        async def arepeat(**fixtures: Any) -> None:
            for _ in range(times):
                await function(**fixtures)

        return arepeat

    def repeat(**fixtures: Any) -> None:
        for _ in range(times):
            function(**fixtures)

    return repeat


@pytest.fixture
def manual_clock() -> ManualClock:
    """Return a clock that moves only by ``advance``."""
    from .clock import ManualClock

    return ManualClock()


@pytest.fixture
def memory_store(manual_clock: ManualClock) -> Iterator[Store]:
    """An empty store in memory, on ``manual_clock``."""
    from effectonce.backends.memory.store import MemoryStoreBackend
    from effectonce.store import Store

    with Store(MemoryStoreBackend(clock=manual_clock), sweep_every=None) as store:
        yield store


@pytest.fixture
def memory_broker(manual_clock: ManualClock) -> Iterator[TestBroker]:
    """A broker in memory, on ``manual_clock``, that delivers when the test says so."""
    from .broker import TestBroker

    with TestBroker(clock=manual_clock) as broker:
        yield broker

"""Guards, sync and async: a test that is written once runs with a handler that is `def` and one that is `async def`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def events() -> list[eo.Event]:
    return []


@pytest.fixture
def store(clock: ManualClock, events: list[eo.Event]) -> Iterator[eo.Store]:
    with eo.Store(MemoryStoreBackend(clock=clock), hooks=[events.append], sweep_every=None) as store:
        yield store


@pytest.fixture
def faulty(clock: ManualClock) -> FaultyBackend:
    return FaultyBackend(clock)


class HandlerForm:
    """Decorates a `def` as it is, or as the `async def` that does the same, called through its own loop."""

    def __init__(self, name: str) -> None:
        self.name = name

    def once(self, store: eo.Store, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        def decorate(function: Callable[..., Any]) -> Any:
            if self.name == "sync":
                return eo.once(store, **options)(function)

            async def handler(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            handler.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
            handler.__qualname__ = function.__qualname__
            handler.__annotations__ = function.__annotations__
            guarded = eo.once(store, **options)(handler)

            def call(*args: Any, **kwargs: Any) -> Any:
                return asyncio.run(guarded(*args, **kwargs))

            call.call = lambda *args, **kwargs: asyncio.run(guarded.call(*args, **kwargs))  # type: ignore[attr-defined]
            return call

        return decorate


@pytest.fixture(params=["sync", "async"])
def form(request: pytest.FixtureRequest) -> HandlerForm:
    return HandlerForm(request.param)

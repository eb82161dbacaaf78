"""What is closed when an event loop ends."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from effectonce.core import loop_end
from effectonce.core.loop_end import call_at_loop_end


def test_it_is_called_when_the_loop_ends_and_not_before() -> None:
    called: list[str] = []

    async def close() -> None:
        await asyncio.sleep(0)
        called.append("closed")

    async def main() -> object:
        kept = call_at_loop_end(close)
        await asyncio.sleep(0)
        assert called == []
        return kept

    kept = asyncio.run(main())
    assert (called, kept is None) == (["closed"], False)


def test_an_error_is_ignored_and_a_server_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_end, "MAX_CLOSE_S", 0.05)

    async def fail() -> None:
        raise ConnectionError

    async def hang() -> None:
        await asyncio.Event().wait()

    async def main() -> list[object]:
        return [call_at_loop_end(fail), call_at_loop_end(hang)]

    began = time.monotonic()
    kept = asyncio.run(main())
    assert (len(kept), time.monotonic() - began < 5, capsys.readouterr().err, caplog.text) == (2, True, "", "")


async def test_what_is_not_kept_is_closed_at_once() -> None:
    closed = asyncio.Event()

    async def close() -> None:
        closed.set()

    call_at_loop_end(close)
    gc.collect()
    await asyncio.wait_for(closed.wait(), 10)

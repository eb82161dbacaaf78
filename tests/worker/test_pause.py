"""The pause of a worker whose server is away."""

from __future__ import annotations

import asyncio

import pytest

from effectonce.values import backoff
from effectonce.worker.pause import Pause

from .bench import until


@pytest.fixture
def resumed() -> list[str]:
    return []


@pytest.fixture
async def pause(resumed: list[str], monkeypatch: pytest.MonkeyPatch) -> Pause:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 0.005)
    return Pause("the store", lambda: resumed.append("resumed"))


async def test_failures_during_a_pause_make_it_no_longer(pause: Pause, resumed: list[str]) -> None:
    for _ in range(20):
        pause.begin(OSError("away"))
    assert pause.active
    await until(lambda: not pause.active)
    assert resumed == ["resumed"]


async def test_an_answer_after_the_pause_says_that_the_server_is_back(
    pause: Pause, caplog: pytest.LogCaptureFixture
) -> None:
    pause.begin(OSError("away"))
    await until(lambda: not pause.active)
    pause.server_answered()
    assert "the store: it answers again, after 1 tries" in caplog.text


async def test_an_answer_to_what_was_sent_before_the_pause_does_not_say_so(
    pause: Pause, caplog: pytest.LogCaptureFixture
) -> None:
    pause.begin(OSError("away"))
    pause.server_answered()
    assert "answers again" not in caplog.text


async def test_a_pause_that_is_closed_resumes_nothing(pause: Pause, resumed: list[str]) -> None:
    pause.begin(OSError("away"))
    pause.close()
    await asyncio.sleep(0.05)
    assert resumed == []

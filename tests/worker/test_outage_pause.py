"""The pause of a worker whose server is away."""

from __future__ import annotations

import asyncio

import pytest

import effectonce as eo
from effectonce.core import backoff
from effectonce.worker.outage_pause import Pause, wait_until_up

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
    assert "the store: it answers again (attempts: 1)" in caplog.text


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


# -- wait_until_up


@pytest.mark.parametrize("error", [eo.BrokerUnavailable("x"), eo.StoreUnavailable("x"), asyncio.CancelledError()])
async def test_work_is_repeated_until_the_server_answers_also_where_a_driver_cancels_itself(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 0.001)
    failures = [error, error]

    async def work() -> None:
        if failures:
            raise failures.pop()

    await asyncio.wait_for(wait_until_up("the broker", work), 30)
    assert failures == []


async def test_an_error_that_no_waiting_mends_is_raised_at_once() -> None:
    async def work() -> None:
        raise eo.ConfigurationError("no such queue")

    with pytest.raises(eo.ConfigurationError):
        await asyncio.wait_for(wait_until_up("the broker", work), 30)


async def test_one_who_is_cancelled_while_it_waits_for_the_server_ends() -> None:
    """Else a worker could not be stopped while its broker hangs."""
    tries: list[int] = []

    async def work() -> None:
        tries.append(1)
        await asyncio.Event().wait()

    waiting = asyncio.create_task(wait_until_up("the broker", work))
    await until(lambda: bool(tries))
    waiting.cancel()
    done, _ = await asyncio.wait([waiting], timeout=30)
    assert done
    assert waiting.cancelled()
    assert tries == [1]

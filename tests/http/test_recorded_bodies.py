"""Bodies that are recorded while a server sends them: what is held back, and what an error or a lost client does."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from effectonce.errors import StoreUnavailable
from effectonce.http.recorded_bodies import CUT_OFF, AsyncRecordedBody, RecordedBody, running_tasks
from tests.harness.waiting import auntil


class Recording:
    """The last chunk, ``b"end"``, is held back. ``unstored``: why the response cannot be stored."""

    def __init__(self, unstored: StoreUnavailable | None = None) -> None:
        self.unstored = unstored
        self.settled = self.too_long = False
        self.log: list[Any] = []
        self.client: Any = None
        runtime = SimpleNamespace(async_client=lambda: "client of this loop")
        self.run = SimpleNamespace(end=lambda: self.log.append("run ended"), runtime=runtime)

    def add(self, chunk: bytes) -> bool:
        self.log.append(chunk)
        self.too_long = self.too_long or chunk == b"too long"
        return chunk != b"end"

    async def settle(self) -> StoreUnavailable | None:
        self.settled = True
        self.log.append("settled")
        return self.unstored

    async def fail(self, error: BaseException) -> None:
        self.settled = True
        self.log.append(f"failed: {error or type(error).__name__}")


def body_of(recording: Recording, *chunks: Any, close: Any = None) -> RecordedBody:
    def produce() -> Iterator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk

    return RecordedBody(recording, produce(), close)  # type: ignore[arg-type]


# -- sync


def test_a_chunk_is_passed_on_at_once_and_the_last_one_when_the_response_is_stored() -> None:
    recording = Recording()
    body = body_of(recording, b"one", b"", b"end")
    assert next(body) == b"one"
    assert recording.log == [b"one"]
    assert (next(body), recording.log) == (b"end", [b"one", b"end", "settled"])
    assert list(body) == []


def test_a_response_that_could_not_be_stored_is_broken_off_before_its_last_chunk() -> None:
    body = body_of(Recording(StoreUnavailable("away")), b"one", b"end")
    assert next(body) == b"one"
    with pytest.raises(StoreUnavailable):
        next(body)


def test_an_application_that_fails_fails_its_request_and_the_server_sees_the_error() -> None:
    recording = Recording()
    body = body_of(recording, b"one", ZeroDivisionError("x"))
    assert next(body) == b"one"
    with pytest.raises(ZeroDivisionError):
        next(body)
    assert recording.log == [b"one", "failed: x"]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ([b"two", b"end"], [b"one", b"two", b"end", "settled"]),
        ([b"too long", b"end"], [b"one", b"too long", f"failed: {CUT_OFF}"]),
    ],
)
def test_20_when_the_client_leaves_the_rest_is_recorded_unless_it_is_too_long(rest: list[Any], expected: Any) -> None:
    recording = Recording()
    body = body_of(recording, b"one", *rest, close=lambda: recording.log.append("closed"))
    next(body)
    body.close()
    assert recording.log == [*expected, "closed", "run ended"]


def test_a_body_is_closed_and_its_run_ended_whatever_fails_on_the_way() -> None:
    recording = Recording()

    def close() -> None:
        recording.log.append("closed")
        raise OSError("x")

    body = body_of(recording, ZeroDivisionError("y"), close=close)
    with pytest.raises(OSError, match="x"):
        body.close()
    assert recording.log == ["failed: y", "closed", "run ended"]


def test_f07_a_body_that_nobody_reads_is_renewed_no_longer() -> None:
    for is_settled in (False, True):
        recording = Recording()
        recording.settled = is_settled
        body_of(recording, b"end")
        gc.collect()
        assert recording.log == ([] if is_settled else ["run ended"])


# -- async


async def produce(*chunks: Any) -> AsyncIterator[bytes]:
    for chunk in chunks:
        if isinstance(chunk, BaseException):
            raise chunk
        yield chunk


def async_body_of(recording: Recording, chunks: AsyncIterator[bytes]) -> AsyncRecordedBody:
    return AsyncRecordedBody(recording, chunks)  # type: ignore[arg-type]


async def read_into(received: list[bytes], body: AsyncRecordedBody) -> None:
    async for chunk in body.stream():
        received.append(chunk)  # noqa: PERF401  # what came before an error counts


async def test_an_async_stream_is_passed_on_and_its_last_chunk_when_the_response_is_stored() -> None:
    recording = Recording()
    received = []
    async for chunk in async_body_of(recording, produce(b"one", b"two", b"end")).stream():
        received.append(chunk)
        if chunk == b"end":
            assert "settled" in recording.log
    assert received == [b"one", b"two", b"end"]
    assert recording.log == [b"one", b"two", b"end", "settled", "run ended"]
    assert recording.client == "client of this loop"
    await auntil(lambda: not running_tasks)


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), asyncio.CancelledError("x")])
async def test_an_async_application_that_fails_fails_its_request_and_ends_the_stream(error: BaseException) -> None:
    recording = Recording()
    received: list[bytes] = []
    with pytest.raises(type(error)):
        await read_into(received, async_body_of(recording, produce(b"one", error)))
    assert received in ([b"one"], []), "what was not sent yet is dropped where its task is cancelled"
    assert recording.log == [b"one", "failed: x", "run ended"]


async def test_an_async_response_that_could_not_be_stored_is_broken_off_and_is_not_failed_as_well() -> None:
    recording = Recording(StoreUnavailable("away"))
    received: list[bytes] = []
    with pytest.raises(StoreUnavailable):
        await read_into(received, async_body_of(recording, produce(b"one", b"end")))
    assert received == [b"one"]
    assert recording.log == [b"one", b"end", "settled", "run ended"]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ([b"two", b"end"], [b"one", b"two", b"end", "settled", "run ended"]),
        ([b"too long", b"end"], [b"one", b"too long", f"failed: {CUT_OFF}", "run ended"]),
    ],
)
async def test_20_when_the_client_of_an_async_stream_leaves_the_rest_is_recorded_unless_it_is_too_long(
    rest: list[Any], expected: Any
) -> None:
    recording, client_left = Recording(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        await client_left.wait()
        for chunk in rest:
            yield chunk

    body = async_body_of(recording, chunks())
    received: list[bytes] = []
    reading = asyncio.create_task(read_into(received, body))
    await auntil(lambda: received == [b"one"])
    reading.cancel()
    await asyncio.sleep(0)
    client_left.set()
    await asyncio.wait([reading], timeout=30)
    assert reading.cancelled()
    assert (recording.log, received) == (expected, [b"one"])


async def test_an_async_body_that_its_server_closes_is_recorded_to_its_end_and_sent_no_more() -> None:
    recording = Recording()
    body = async_body_of(recording, produce(b"one", b"two", b"end"))
    stream = body.stream()
    assert await anext(stream) == b"one"
    await asyncio.to_thread(body.close)
    await auntil(lambda: "run ended" in recording.log)
    assert recording.log == [b"one", b"two", b"end", "settled", "run ended"]
    await auntil(lambda: not running_tasks)


async def test_f07_an_async_body_that_nobody_reads_is_renewed_no_longer() -> None:
    recording = Recording()
    async_body_of(recording, produce(b"end"))
    gc.collect()
    assert recording.log == ["run ended"]


async def test_a_stream_that_nobody_reads_any_more_ends_with_its_loop() -> None:
    """As a middleware leaves it that drops a response half read: `asyncio.run` cancels all tasks and waits for them."""
    recording = Recording()
    stream = async_body_of(recording, produce(b"one", b"two", b"three", b"end")).stream()
    assert await anext(stream) == b"one"
    await auntil(lambda: b"three" in recording.log)
    (task,) = running_tasks
    task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    assert recording.log[-1] == "run ended"

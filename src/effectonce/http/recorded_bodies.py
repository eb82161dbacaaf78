"""Bodies of responses that are recorded while the server iterates over them: in WSGI and Django.

ASGI has no such iterable; `asgi` records each message that an application sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress

from effectonce.core.run_sync import run_sync
from effectonce.errors import EffectOnceError

from .response_recording import IncompleteResponse, ResponseRecording

CUT_OFF = "the client left in the middle of a response that is too long to store"


class RecordedBody:
    """An iterable body: records each chunk and passes it on. The last one waits until the response is stored.

    If the client leaves, the server closes the body early. `close` then takes the rest from the application all the
    same, since the client's retry will ask for the outcome. Only a response that is too long to store is cut off.
    """

    def __init__(
        self, recording: ResponseRecording, chunks: Iterable[bytes], close: Callable[[], object] | None
    ) -> None:
        self._recording = recording
        self._chunks = iter(chunks)
        self._close_chunks = close
        self._ready: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        recording = self._recording
        while not recording.settled:
            chunk = self._next_chunk()
            if chunk is None:
                self._settle()
            elif chunk:
                self._ready.append(chunk)
                if recording.add(chunk):
                    break
        self._send_head()
        if self._ready:
            return self._ready.pop(0)
        raise StopIteration

    def _next_chunk(self) -> bytes | None:
        try:
            return next(self._chunks, None)
        except BaseException as error:
            run_sync(self._recording.fail(error))
            raise

    def _settle(self) -> None:
        error = run_sync(self._recording.settle())
        if error is not None:
            self._ready.clear()
            self._ready.append(self._refuse(error))

    def _send_head(self) -> None:
        """Send status and headers, if that has not happened yet: the first bytes of the body are next."""

    def _refuse(self, error: EffectOnceError) -> bytes:
        """Replace this response, which could not be stored, by a refusal. Returns the refusal's body; raises ``error``
        if status and headers have been sent."""
        raise error

    def close(self) -> None:
        """Called by the server at the end of the response, or when its client has left."""
        recording = self._recording
        try:
            while not recording.settled:
                if recording.too_long:
                    run_sync(recording.fail(IncompleteResponse(CUT_OFF)))
                elif (chunk := self._next_chunk()) is None:
                    run_sync(recording.settle())
                else:
                    recording.add(chunk)
        finally:
            try:
                if self._close_chunks is not None:
                    self._close_chunks()
            finally:
                recording.run.end()

    def __del__(self) -> None:
        _end_unread_run(self._recording)


#: The tasks of `AsyncRecordedBody`: an event loop holds its tasks weakly.
running_tasks: set[asyncio.Task[None]] = set()


class AsyncRecordedBody:
    """`RecordedBody` for an async stream.

    A task of its own takes the chunks from the application: when the client leaves, the task that sends them is
    cancelled, and the application still runs to its end.
    """

    def __init__(self, recording: ResponseRecording, chunks: AsyncIterator[bytes]) -> None:
        self._recording = recording
        self._chunks = chunks
        self._ready: asyncio.Queue[bytes | None] = asyncio.Queue(1)  # None: the stream has ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client_left = False

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks to the client. If it is cancelled, it waits until the application has ended; a second
        cancellation cancels the application, too."""
        self._loop = asyncio.get_running_loop()
        # The request may have been claimed on another event loop, and a client belongs to one.
        self._recording.client = self._recording.run.runtime.async_client()
        task = self._loop.create_task(self._run())
        running_tasks.add(task)
        task.add_done_callback(running_tasks.discard)
        try:
            while (chunk := await self._ready.get()) is not None:
                yield chunk
            await task
        except asyncio.CancelledError:
            self._discard_unsent()
            with suppress(Exception):
                await task
            raise
        finally:
            self._discard_unsent()

    def close(self) -> None:
        """Called on any thread when the client has left: the rest is recorded, and not sent."""
        self._client_left = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._discard_unsent)

    def _discard_unsent(self) -> None:
        self._client_left = True
        while not self._ready.empty():
            self._ready.get_nowait()

    async def _run(self) -> None:
        """Take the chunks from the application and settle its response, even if the client has left."""
        recording, held_back = self._recording, list[bytes]()
        try:
            async for chunk in self._chunks:
                if not recording.add(chunk):
                    held_back.append(chunk)
                elif not self._client_left:
                    await self._ready.put(chunk)
                if self._client_left and recording.too_long:
                    await recording.fail(IncompleteResponse(CUT_OFF))
                    return
            error = await recording.settle()
            if error is not None:
                raise error
            for chunk in held_back:
                if not self._client_left:
                    await self._ready.put(chunk)
        except BaseException as error:
            if not recording.settled:
                await recording.fail(error)
            if not isinstance(error, Exception):
                self._discard_unsent()  # so that there is room for the None
            raise
        finally:
            recording.run.end()
            if self._client_left:
                self._discard_unsent()
            await self._ready.put(None)

    def __del__(self) -> None:
        _end_unread_run(self._recording)


def _end_unread_run(recording: ResponseRecording) -> None:
    """End the run of a body that is garbage-collected without having been read or closed. Otherwise the heartbeat would
    renew its claim for ever."""
    if not recording.settled:
        recording.run.end()

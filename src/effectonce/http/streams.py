"""Response bodies on their way to the client, recorded as they go: those of sync applications, and of Django's async
views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress

from effectonce.core.run_sync import run_sync
from effectonce.errors import EffectOnceError

from .exchange import Incomplete, Recording

CUT_OFF = "the client left in the middle of a response too long to keep"


class RecordedBody:
    """The chunks of a response, passed on as they come; what a client could take for the end waits for the record.

    Closed early, by a server whose client is gone, it takes the rest from the application all the same: the work whose
    outcome the retry will ask for runs to its end. Only a response that is too long to be kept is cut off.
    """

    def __init__(self, recording: Recording, chunks: Iterable[bytes], close: Callable[[], object] | None) -> None:
        self._recording = recording
        self._chunks = iter(chunks)
        self._close_chunks = close
        self._ready: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        recording = self._recording
        while not recording.concluded:
            chunk = self._take()
            if chunk is None:
                self._conclude()
            elif chunk:
                self._ready.append(chunk)
                if recording.add(chunk):
                    break
        self._send_head()
        if self._ready:
            return self._ready.pop(0)
        raise StopIteration

    def _take(self) -> bytes | None:
        try:
            return next(self._chunks, None)
        except BaseException as error:
            run_sync(self._recording.fail(error))
            raise

    def _conclude(self) -> None:
        error = run_sync(self._recording.conclude())
        if error is not None:
            self._ready.clear()
            self._ready.append(self._refuse(error))

    def _send_head(self) -> None:
        """Send status and headers, unless they have left: the first bytes of the body are next."""

    def _refuse(self, error: EffectOnceError) -> bytes:
        """Answer something else, since this response could not be recorded. Returns the body of that; raises where
        status and headers have left."""
        raise error

    def close(self) -> None:
        """Called by the server at the end, or when its client is gone."""
        recording = self._recording
        try:
            while not recording.concluded:
                if recording.too_long:
                    run_sync(recording.fail(Incomplete(CUT_OFF)))
                elif (chunk := self._take()) is None:
                    run_sync(recording.conclude())
                else:
                    recording.add(chunk)
        finally:
            try:
                if self._close_chunks is not None:
                    self._close_chunks()
            finally:
                recording.run.end()

    def __del__(self) -> None:
        _release(self._recording)


#: The tasks of `AsyncRecordedBody`: an event loop holds its tasks weakly.
running_tasks: set[asyncio.Task[None]] = set()


class AsyncRecordedBody:
    """`RecordedBody` for an async stream. Its own task takes the chunks from the application: the task that sends them
    is cancelled when the client leaves, and the work still runs to its end."""

    def __init__(self, recording: Recording, chunks: AsyncIterator[bytes]) -> None:
        self._recording = recording
        self._chunks = chunks
        self._ready: asyncio.Queue[bytes | None] = asyncio.Queue(1)  # None: there are no more
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client_left = False

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks to the client. Cancelled, it waits for the end of the work; cancelled again, it cancels
        that."""
        self._loop = asyncio.get_running_loop()
        self._recording.client = self._recording.run.runtime.async_client()  # of this loop, wherever it was claimed
        task = self._loop.create_task(self._run())
        running_tasks.add(task)
        task.add_done_callback(running_tasks.discard)
        try:
            while (chunk := await self._ready.get()) is not None:
                yield chunk
            await task
        except asyncio.CancelledError:
            self._leave()
            with suppress(Exception):
                await task
            raise
        finally:
            self._leave()

    def close(self) -> None:
        """Called on any thread when the client is gone: what comes is kept, and not sent."""
        self._client_left = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._client_left = True
        while not self._ready.empty():
            self._ready.get_nowait()

    async def _run(self) -> None:
        """Take the chunks from the application and settle its response, whether the client is there or not."""
        recording, held = self._recording, list[bytes]()
        try:
            async for chunk in self._chunks:
                if not recording.add(chunk):
                    held.append(chunk)
                elif not self._client_left:
                    await self._ready.put(chunk)
                if self._client_left and recording.too_long:
                    await recording.fail(Incomplete(CUT_OFF))
                    return
            error = await recording.conclude()
            if error is not None:
                raise error
            for chunk in held:
                if not self._client_left:
                    await self._ready.put(chunk)
        except BaseException as error:
            if not recording.concluded:
                await recording.fail(error)
            if not isinstance(error, Exception):
                self._leave()  # so that there is room for the None
            raise
        finally:
            recording.run.end()
            if self._client_left:
                self._leave()
            await self._ready.put(None)

    def __del__(self) -> None:
        _release(self._recording)


def _release(recording: Recording) -> None:
    """End the run of a stream that was collected without having been read or closed: the heartbeat must not renew its
    claim for ever."""
    if not recording.concluded:
        recording.run.end()

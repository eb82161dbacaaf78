"""Response bodies on their way out, recorded as they go: of sync applications, and of Django's async views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Protocol

from effectonce.core.run_sync import run_sync
from effectonce.errors import EffectOnceError

from .exchange import Incomplete, Recording

CUT_OFF = "the client left in the middle of a response too long to keep"


class ResponseHead(Protocol):
    """Status and headers that have not left yet."""

    def send(self) -> None:
        """Let them leave, where they have not: the first bytes of the body are next."""
        ...

    def refuse(self, error: EffectOnceError) -> bytes:
        """Make it another response, since this one could not be recorded; its body. Raises where they have left."""
        ...


class WatchedBody:
    """The chunks of a response, passed on as they come; what a client could take for the end waits for the record.

    Closed early, by a server whose client is gone, it takes the rest from the application all the same: the work whose
    outcome the retry will ask for is done to its end. Only a response that is too long to be kept is cut off.
    """

    def __init__(
        self,
        recording: Recording,
        chunks: Iterable[bytes],
        closing: Callable[[], object] | None,
        head: ResponseHead | None = None,
    ) -> None:
        self._recording = recording
        self._chunks = iter(chunks)
        self._closing = closing
        self._head = head
        self._held: list[bytes] = []

    def __iter__(self) -> WatchedBody:
        return self

    def __next__(self) -> bytes:
        recording, head = self._recording, self._head
        while not recording.concluded:
            chunk = self._next()
            if chunk is None:
                self._conclude()
            elif chunk:
                self._held.append(chunk)
                if recording.add(chunk):
                    break
        if head is not None:
            head.send()
        if self._held:
            return self._held.pop(0)
        raise StopIteration

    def _next(self) -> bytes | None:
        try:
            return next(self._chunks, None)
        except BaseException as error:
            run_sync(self._recording.fail(error))
            raise

    def _conclude(self) -> None:
        error = run_sync(self._recording.conclude())
        if error is not None:
            self._held.clear()
            if self._head is None:
                raise error
            self._held.append(self._head.refuse(error))

    def close(self) -> None:
        """What a server calls at the end, or when its client is gone."""
        recording = self._recording
        try:
            while not recording.concluded:
                chunk = None if recording.over else self._next()
                if chunk is not None:
                    recording.add(chunk)
                elif recording.over:
                    run_sync(recording.fail(Incomplete(CUT_OFF)))
                else:
                    run_sync(recording.conclude())
        finally:
            try:
                if self._closing is not None:
                    self._closing()
            finally:
                recording.run.end()

    def __del__(self) -> None:
        _let_go(self._recording)


#: Loops themselves do not keep what they run from being collected.
_going_on: set[asyncio.Task[None]] = set()


class AsyncWatchedBody:
    """`WatchedBody` for an async stream. Its own task takes the chunks from the application: the task that sends them
    is cancelled when the client leaves, and the work still comes to its end."""

    def __init__(self, recording: Recording, chunks: AsyncIterator[bytes]) -> None:
        self._recording = recording
        self._chunks = chunks
        self._ready: asyncio.Queue[bytes | None] = asyncio.Queue(1)  # None: there are no more
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = False

    async def passed_on(self) -> AsyncIterator[bytes]:
        """The chunks, for the client. Cancelled, it waits for the end of the work; cancelled again, it ends that."""
        self._loop = asyncio.get_running_loop()
        self._recording.client = self._recording.run.runtime.async_client()  # of this loop, wherever it was claimed
        task = self._loop.create_task(self._take())
        _going_on.add(task)
        task.add_done_callback(_going_on.discard)
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
        """The client is gone, says whatever thread: what comes is kept, and nobody waits for it."""
        self._left = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._left = True
        while not self._ready.empty():
            self._ready.get_nowait()

    async def _take(self) -> None:
        recording, held = self._recording, list[bytes]()
        try:
            async for chunk in self._chunks:
                if not recording.add(chunk):
                    held.append(chunk)
                elif not self._left:
                    await self._ready.put(chunk)
                if self._left and recording.over:
                    await recording.fail(Incomplete(CUT_OFF))
                    return
            error = await recording.conclude()
            if error is not None:
                raise error
            for chunk in held:
                if not self._left:
                    await self._ready.put(chunk)
        except BaseException as error:
            if not recording.concluded:
                await recording.fail(error)
            if not isinstance(error, Exception):
                self._leave()  # so that there is room for the word that it is over
            raise
        finally:
            recording.run.end()
            if self._left:
                self._leave()
            await self._ready.put(None)

    def __del__(self) -> None:
        _let_go(self._recording)


def _let_go(recording: Recording) -> None:
    """A stream that nobody has begun to read, or closed, is gone: its claim must not be renewed for ever."""
    if not recording.concluded:
        recording.run.end()

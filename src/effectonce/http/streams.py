"""Response bodies of sync applications on their way out, recorded as they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from effectonce.core.drive import drive
from effectonce.errors import EffectOnceError

from .exchange import Incomplete, Recording


class Head(Protocol):
    """Status and headers that have not left yet."""

    def send(self) -> None:
        """Let them leave, where they have not: the first bytes of the body are next."""
        ...

    def refuse(self, error: EffectOnceError) -> bytes:
        """Make it another response, since this one could not be recorded; its body. Raises where they have left."""
        ...


class Watched:
    """The chunks of a response, passed on as they come; what a client could take for the end waits for the record.

    Closed early, by a server whose client is gone, it takes the rest from the application all the same: the work whose
    outcome the retry will ask for is done to its end. Only a response that is too long to be kept is cut off.
    """

    def __init__(
        self,
        recording: Recording,
        chunks: Iterable[bytes],
        closing: Callable[[], object] | None,
        head: Head | None = None,
    ) -> None:
        self._recording = recording
        self._chunks = iter(chunks)
        self._closing = closing
        self._head = head
        self._held: list[bytes] = []

    def __iter__(self) -> Watched:
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
            drive(self._recording.fail(error))
            raise

    def _conclude(self) -> None:
        error = drive(self._recording.conclude())
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
                    drive(recording.fail(Incomplete("the client left in the middle of a response too long to keep")))
                else:
                    drive(recording.conclude())
        finally:
            try:
                if self._closing is not None:
                    self._closing()
            finally:
                recording.run.ended()

"""A TCP proxy between a client and a real server, which injects network faults on demand.

    with FaultProxy(server.port) as proxy:
        store = connect(proxy.through(server.url))
        proxy.drop_reply(to=b"EVALSHA")    # the server executes it, the client gets no reply

It runs its own event loop in its own thread, so that a test may block, or run a loop of its own, as it likes.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

T = TypeVar("T")
_CHUNK = 65_536

#: What PostgreSQL answers when it has executed a COMMIT: the message CommandComplete.
COMMIT_REPLY = b"C\x00\x00\x00\x0bCOMMIT\x00"


class _Link:
    """One client connection and its counterpart at the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.half_closed = False
        self.silent = False
        self.request = b""  # what the client sent since the last reply
        self.tail = b""  # the end of the last reply, where a frame may have begun

    def reset(self) -> None:
        for writer in (self.client, self.server):
            _reset(writer)

    def half_close(self) -> None:
        self.half_closed = True
        if not self.client.is_closing():
            self.client.write_eof()


class FaultProxy:
    """Its faults are attributes, read for every chunk: they affect open connections, too. `heal()` removes them.

    delay      seconds before each chunk is passed on, in both directions
    slice      pass on at most this many bytes at a time
    blackhole  swallow everything in both directions; connections stay open
    refuse     reset every new connection

    `requests` and `replies` count what went through; a reply is the server's first chunk after a request.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._links: set[_Link] = set()
        self._cut_after: int | None = None
        self._drop: tuple[int, bytes] | None = None
        self._frame, self._frames = b"", 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.requests = 0
        self.replies = 0
        self.cuts = 0
        self.heal()

    def heal(self) -> None:
        self.delay = 0.0
        self.slice: int | None = None
        self.blackhole = False
        self.refuse = False
        self._cut_after = None
        self._drop = None
        self._frames = 0

    def through(self, url: str) -> str:
        """Return the same URL, with the address of this proxy."""
        host, port = self._target
        passed = url.replace(f"{host}:{port}", f"127.0.0.1:{self.port}")
        assert passed != url, f"{url} does not name {host}:{port}"
        return passed

    @property
    def connections(self) -> int:
        return len(self._links)

    def reset(self) -> None:
        """RST on every open connection, to the client and to the server."""
        self._each(_Link.reset)

    def silence(self) -> None:
        """Swallow everything on every open connection, as a NAT gateway does that forgot them. New ones are served."""
        for link in list(self._links):
            link.silent = True

    def half_close(self) -> None:
        """Tell every client that the server will send no more; the other direction stays open."""
        self._each(_Link.half_close)

    def cut_reply_after(self, count: int) -> None:
        """Pass on `count` more bytes from the server, then reset that connection: half a reply."""
        self._cut_after = count

    def drop_reply(self, nth: int = 1, to: bytes = b"") -> None:
        """Reset instead of the nth reply from now; `to` counts only replies to requests that contain it."""
        self._drop = (nth, to)

    def cut_at(self, frame: bytes, times: int = 1) -> None:
        """Reset instead of ``frame`` in the server's bytes, the next ``times`` that it occurs; ``cuts`` counts them.
        The bytes before it are passed on: with `COMMIT_REPLY`, the client learns everything but that its commit was
        executed (F30)."""
        self._frame, self._frames = frame, times

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _each(self, action: Callable[[_Link], None]) -> None:
        async def act() -> None:
            for link in list(self._links):
                action(link)

        self._call(act())

    async def _shut(self) -> None:
        self._server.close()
        for link in list(self._links):
            link.reset()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.refuse:
                raise ConnectionRefusedError
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        link = _Link(writer, server_writer)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(link, reader, server_writer, self._on_request))
                both.create_task(self._pump(link, server_reader, writer, self._on_reply))
        except* (OSError, asyncio.CancelledError):
            link.reset()
        finally:
            self._links.discard(link)
            for end in (writer, server_writer):
                end.close()

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inspect: Callable[[_Link, bytes], bytes | None],
    ) -> None:
        while chunk := await reader.read(_CHUNK):
            allowed = inspect(link, chunk)
            if self.blackhole or link.silent or (link.half_closed and writer is link.client):
                continue
            await self._pass_on(link, writer, chunk if allowed is None else allowed)
            if allowed is not None:
                link.reset()
                return
        with suppress(OSError):
            writer.write_eof()

    async def _pass_on(self, link: _Link, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        size = self.slice or len(data) or 1
        for start in range(0, len(data), size):
            if link.half_closed and writer is link.client:  # meanwhile
                return
            writer.write(data[start : start + size])
            await writer.drain()
            if self.slice:
                await asyncio.sleep(0)

    def _on_request(self, link: _Link, chunk: bytes) -> bytes | None:
        self.requests += 1
        link.request += chunk
        return None

    def _on_reply(self, link: _Link, chunk: bytes) -> bytes | None:
        """Return None to pass the chunk on; or the bytes to pass on before the connection is reset."""
        request, link.request = link.request, b""
        if request:
            self.replies += 1
            if self._drop is not None and self._drop[1] in request:
                nth, to = self._drop
                self._drop = (nth - 1, to) if nth > 1 else None
                if nth == 1:
                    return b""
        if self._frames:
            seen, before = link.tail + chunk, len(link.tail)
            at = seen.find(self._frame)
            link.tail = seen[1 - len(self._frame) :]
            if at >= 0:
                self._frames -= 1
                self.cuts += 1
                return chunk[: max(at - before, 0)]
        if self._cut_after is not None:
            if len(chunk) >= self._cut_after:
                allowed, self._cut_after = chunk[: self._cut_after], None
                return allowed
            self._cut_after -= len(chunk)
        return None


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    with suppress(OSError):
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

"""One socket to a Redis, sync or async: it sends bytes and returns parsed replies. After a failure it is not reused."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from typing import Any, Final

from effectonce.errors import BrokerUnavailable, StoreUnavailable

from .connecting import HAPPY_EYEBALLS_DELAY_S, connect, tune
from .endpoint import RedisEndpoint, load_driver
from .errors import NotRedis, ReplyError
from .sentinel import find_primary

RECEIVE_BYTES: Final = 65_536
#: A connection that was idle for longer is tried with a PING before it is used. A firewall or a NAT gateway may have
#: dropped it without a word: then the PING costs a second and no error, in place of the whole timeout and an error.
MAX_UNTRIED_IDLE_S: Final = 30.0
PING_TIMEOUT_S: Final = 1.0
PING: Final = b"*1\r\n$4\r\nPING\r\n"
#: A timeout of 0 would make a socket non-blocking.
MIN_TIMEOUT_S: Final = 0.001


def _new_reader() -> Any:
    return load_driver().Reader(protocolError=NotRedis, replyError=ReplyError)


class SyncRedisSocket:
    """See `connection.RedisSocket`. It blocks the calling thread."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self.endpoint = endpoint
        self._socket: socket.socket | None = None
        self._reader: Any = None
        # Set from before the first byte is sent until all replies are read. A KeyboardInterrupt may come between any
        # two lines: the next `send` that finds this set starts on a new connection.
        self._awaits_reply = False
        self._used_at = 0.0

    async def send(self, data: bytes) -> None:
        if self._awaits_reply:
            self.drop()
        if self._socket is not None and time.monotonic() - self._used_at > MAX_UNTRIED_IDLE_S:
            await self._try_idle()
        sock = self._socket or await self._open()
        self._awaits_reply = True
        try:
            if sock.gettimeout() != self.endpoint.timeout:  # setting it is a system call
                sock.settimeout(self.endpoint.timeout)
            sock.sendall(data)
        except OSError as error:
            raise self._drop_after(error) from error

    async def receive(self, count: int | None, within: float | None = None) -> list[Any]:
        sock, reader = self._socket, self._reader
        if sock is None:
            raise self.endpoint.errors.broken_connection_error(None)
        remaining = self.endpoint.timeout if within is None else within
        self._used_at = time.monotonic()
        deadline = self._used_at + remaining
        replies: list[Any] = []
        try:
            while True:
                while len(replies) != count and (reply := reader.gets()) is not False:
                    replies.append(reply)
                if len(replies) >= (count or 1):
                    break
                if remaining < 0:  # the timeout of a socket is for each recv: a slow sender must not stretch ours
                    raise TimeoutError
                if sock.gettimeout() != remaining:
                    sock.settimeout(max(remaining, MIN_TIMEOUT_S))
                data = sock.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError("closed by the server")
                reader.feed(data)
                remaining = deadline - time.monotonic()
        except OSError as error:
            if not (count is None and isinstance(error, TimeoutError)):
                raise self._drop_after(error) from error
        self._awaits_reply = False
        return replies

    async def _try_idle(self) -> None:
        """Send a PING. A connection that does not answer it is dropped."""
        self._used_at = math.inf  # until `receive` is called: `send` must not try it again
        try:
            await self.send(PING)
            await self.receive(1, min(PING_TIMEOUT_S, self.endpoint.timeout))
        except (StoreUnavailable, BrokerUnavailable):
            self.drop()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - a sync port never suspends

    def drop(self) -> None:
        sock, self._socket, self._reader = self._socket, None, None
        self._awaits_reply = False
        if sock is not None:
            sock.close()

    def _drop_after(self, error: OSError) -> Exception:
        """Drop the connection, and return our exception for the error that broke it."""
        self.drop()
        errors = self.endpoint.errors
        if isinstance(error, TimeoutError):
            return errors.timeout_error(self.endpoint.timeout)
        return errors.broken_connection_error(error)

    async def _open(self) -> socket.socket:
        endpoint = self.endpoint
        host, port = endpoint.host, endpoint.port
        if endpoint.sentinels:
            host, port = await find_primary(type(self), endpoint)
        sock: socket.socket | None = None
        try:
            if endpoint.path is not None:
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(endpoint.connect_timeout)
                sock.connect(endpoint.path)
            else:
                sock = connect(host, port, endpoint.connect_timeout)
                tune(sock)
            if endpoint.tls is not None:
                sock = endpoint.tls.wrap_socket(sock, server_hostname=host)
            self._socket, self._reader = sock, _new_reader()
            sock.sendall(endpoint.packed_greeting())
            endpoint.check_greeting(await self.receive(endpoint.greeting_count, endpoint.connect_timeout))
        except BaseException as error:
            self.drop()
            if sock is not None:
                sock.close()
            if isinstance(error, OSError | endpoint.error_kind.connection_lost):
                raise endpoint.errors.connect_error(error, endpoint.connect_timeout) from error
            raise
        return sock


class _ReplyStream(asyncio.Protocol):
    """Parses the received bytes. Wakes its one waiter when ``wanted`` replies are complete, or the connection is
    lost."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.wanted = 0
        self.waiter: asyncio.Future[None] | None = None
        self.lost: Exception | None = None
        self._reader = _new_reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self.replies.append(reply)
        except NotRedis as error:
            self.connection_lost(error)
        if self.waiter is not None and len(self.replies) >= self.wanted and not self.waiter.done():
            self.waiter.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = error or ConnectionResetError("closed by the server")
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class AsyncRedisSocket:
    """See `connection.RedisSocket`. It belongs to the event loop that first sends on it."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self.endpoint = endpoint
        self._stream: _ReplyStream | None = None
        self._used_at = 0.0

    async def send(self, data: bytes) -> None:
        if self._stream is not None and time.monotonic() - self._used_at > MAX_UNTRIED_IDLE_S:
            await self._try_idle()
        stream = self._stream or await self._open()
        stream.transport.write(data)

    async def receive(self, count: int | None, within: float | None = None) -> list[Any]:
        stream = self._stream
        if stream is None:
            raise self.endpoint.errors.broken_connection_error(None)
        wanted = count or 1
        self._used_at = time.monotonic()
        try:
            if len(stream.replies) < wanted and stream.lost is None:
                stream.wanted, stream.waiter = wanted, asyncio.get_running_loop().create_future()
                async with asyncio.timeout(self.endpoint.timeout if within is None else within):
                    await stream.waiter
        except TimeoutError as error:
            if count is None:
                return []
            self.drop()
            raise self.endpoint.errors.timeout_error(self.endpoint.timeout) from error
        except BaseException:  # cancelled: replies are under way that the next caller would take for its own
            self.drop()
            raise
        if len(stream.replies) < wanted:
            self.drop()
            raise self.endpoint.errors.broken_connection_error(stream.lost) from stream.lost
        replies = stream.replies[:count]
        del stream.replies[:count]
        return replies

    async def _try_idle(self) -> None:
        """Send a PING. A connection that does not answer it is dropped."""
        self._used_at = math.inf  # until `receive` is called: `send` must not try it again
        try:
            await self.send(PING)
            await self.receive(1, min(PING_TIMEOUT_S, self.endpoint.timeout))
        except (StoreUnavailable, BrokerUnavailable):
            self.drop()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.transport.abort()
            except RuntimeError:  # the loop is closed, and the socket with it
                pass

    async def _open(self) -> _ReplyStream:
        endpoint, loop = self.endpoint, asyncio.get_running_loop()
        host, port = endpoint.host, endpoint.port
        if endpoint.sentinels:
            host, port = await find_primary(type(self), endpoint)
        try:
            async with asyncio.timeout(endpoint.connect_timeout):
                if endpoint.path is not None:
                    _, stream = await loop.create_unix_connection(_ReplyStream, endpoint.path)
                else:
                    transport, stream = await loop.create_connection(
                        _ReplyStream,
                        host,
                        port,
                        ssl=endpoint.tls,
                        server_hostname=host if endpoint.tls else None,
                        happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S,
                    )
                    tune(transport.get_extra_info("socket"))
                self._stream = stream
                stream.transport.write(endpoint.packed_greeting())
                endpoint.check_greeting(await self.receive(endpoint.greeting_count))
        except BaseException as error:
            self.drop()
            if isinstance(error, OSError | endpoint.error_kind.connection_lost):
                raise endpoint.errors.connect_error(error, endpoint.connect_timeout) from error
            raise
        return stream

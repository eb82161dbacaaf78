"""One socket to a Redis, sync or async: bytes out, parsed replies in, and nothing is reused after a failure."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from effectonce.contracts import ConnectionLost
from effectonce.errors import StoreUnavailable

from .connection import NotRedis, RedisEndpoint, connect_error, connection_lost, load_driver, new_reader, timeout_error

_RECEIVE_BYTES = 65_536


class SyncRedisSocket:
    """See `connection.RedisSocket`. It blocks the calling thread."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self.endpoint = endpoint
        self._socket: socket.socket | None = None
        self._reader: Any = None
        # Set from before the first byte is sent until all replies are read. A KeyboardInterrupt may come between any
        # two lines, also outside of every `try`: the next call that finds this set starts on a new connection.
        self._awaits_reply = False

    async def ask(self, command: bytes) -> Any:
        if self._awaits_reply:
            self.drop()
        sock = self._socket
        if sock is None:
            sock = await self._open()
        reader = self._reader
        started = time.monotonic()
        try:
            self._awaits_reply = True
            sock.sendall(command)
            data = sock.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("closed by the server")
            reader.feed(data)
            reply = reader.gets()
        except OSError as error:
            raise self._drop_after(error) from error
        except BaseException:
            self.drop()
            raise
        if reply is False:  # the reply is not complete yet
            (reply,) = await self.receive(1, self.endpoint.timeout - (time.monotonic() - started))
        self._awaits_reply = False
        return reply

    async def send(self, data: bytes) -> None:
        if self._awaits_reply:
            self.drop()
        sock = self._socket
        if sock is None:
            sock = await self._open()
        try:
            self._awaits_reply = True
            sock.sendall(data)
        except OSError as error:
            raise self._drop_after(error) from error
        except BaseException:
            self.drop()
            raise

    async def receive(self, count: int, within: float | None = None) -> list[Any]:
        sock, reader = self._socket, self._reader
        if sock is None:
            raise connection_lost(self.endpoint, None)
        replies: list[Any] = []
        default_timeout = sock.gettimeout()
        changed = within is not None and within != default_timeout
        deadline = time.monotonic() + (within if within is not None else default_timeout or 0.0)
        try:
            if changed:
                sock.settimeout(max(within or 0.0, 0.001))
            while True:
                data = sock.recv(_RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError("closed by the server")
                reader.feed(data)
                while len(replies) < count and (reply := reader.gets()) is not False:
                    replies.append(reply)
                if len(replies) == count:
                    if changed:
                        sock.settimeout(default_timeout)
                    self._awaits_reply = False
                    return replies
                # A socket's timeout is per recv: a server that sends byte by byte must not stretch ours.
                changed = True
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError
                sock.settimeout(remaining)
        except OSError as error:
            raise self._drop_after(error) from error
        except BaseException:
            self.drop()
            raise

    async def receive_pushed(self, timeout: float) -> list[Any]:
        sock, reader = self._socket, self._reader
        if sock is None:
            raise connection_lost(self.endpoint, None)
        replies: list[Any] = []
        try:
            self._awaits_reply = False  # a push that is cut short here is completed by the next call
            while (reply := reader.gets()) is not False:  # received together with an earlier reply
                replies.append(reply)
            if replies:
                return replies
            sock.settimeout(max(timeout, 0.001))
            data = sock.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("closed by the server")
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                replies.append(reply)
        except TimeoutError:
            pass
        except OSError as error:
            raise self._drop_after(error) from error
        except BaseException:
            self.drop()
            raise
        sock.settimeout(self.endpoint.timeout)
        return replies

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - a sync port never suspends

    def drop(self) -> None:
        sock, self._socket, self._reader = self._socket, None, None
        self._awaits_reply = False
        if sock is not None:
            sock.close()

    def _drop_after(self, error: OSError) -> StoreUnavailable:
        """Drop the connection. Returns our exception for what broke it."""
        self.drop()
        return (
            timeout_error(self.endpoint) if isinstance(error, TimeoutError) else connection_lost(self.endpoint, error)
        )

    async def _open(self) -> socket.socket:
        endpoint, hiredis = self.endpoint, load_driver()
        sock: socket.socket | None = None
        try:
            if endpoint.path is not None:
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(endpoint.connect_timeout)
                sock.connect(endpoint.path)
            else:
                sock = socket.create_connection((endpoint.host, endpoint.port), endpoint.connect_timeout)
                _tune(sock)
            if endpoint.tls is not None:
                sock = endpoint.tls.wrap_socket(sock, server_hostname=endpoint.host)
            self._socket, self._reader = sock, new_reader()
            sock.sendall(b"".join(map(hiredis.pack_command, endpoint.greeting_commands())))
            endpoint.check_greeting(await self.receive(endpoint.greeting_count))
            sock.settimeout(endpoint.timeout)
        except BaseException as error:
            self.drop()
            if sock is not None:
                sock.close()
            if isinstance(error, OSError | ConnectionLost):
                raise connect_error(endpoint, error) from error
            raise
        return sock


class _ReplyStream(asyncio.Protocol):
    """Parses the bytes received, and wakes the one waiter when enough replies are complete."""

    def __init__(self, reader: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._feed, self._gets = reader.feed, reader.gets
        self._loop = loop
        self._wanted = 0
        self._waiter: asyncio.Future[bool] | None = None
        self._lost: BaseException | None = None
        self.ready: list[Any] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        ready, gets = self.ready, self._gets
        try:
            self._feed(data)
            while (reply := gets()) is not False:
                ready.append(reply)
        except NotRedis as error:
            self.connection_lost(error)
            return
        if self._waiter is not None and len(ready) >= self._wanted and not self._waiter.done():
            self._waiter.set_result(True)

    def connection_lost(self, error: BaseException | None) -> None:
        self._lost = error or ConnectionResetError("closed by the server")
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._lost)

    async def wait_for(self, count: int, timeout: float) -> bool:
        """Whether ``count`` replies are ready within ``timeout``. Raises what broke the connection."""
        if len(self.ready) >= count:
            return True
        if self._lost is not None:
            raise self._lost
        self._wanted = count
        self._waiter = waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout, _expire, waiter)
        try:
            enough: bool = await waiter
            return enough
        finally:
            timer.cancel()
            self._waiter = None

    def take(self, count: int) -> list[Any]:
        taken, self.ready = self.ready[:count], self.ready[count:]
        return taken


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class AsyncRedisSocket:
    """See `connection.RedisSocket`. It belongs to the event loop that first sends on it."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self.endpoint = endpoint
        self._stream: _ReplyStream | None = None

    async def ask(self, command: bytes) -> Any:
        await self.send(command)
        (reply,) = await self.receive(1)
        return reply

    async def send(self, data: bytes) -> None:
        stream = self._stream
        if stream is None:
            stream = await self._open()
        assert stream.transport is not None
        stream.transport.write(data)

    async def receive(self, count: int, within: float | None = None) -> list[Any]:
        stream = self._stream
        if stream is None:
            raise connection_lost(self.endpoint, None)
        try:
            if await stream.wait_for(count, self.endpoint.timeout if within is None else within):
                return stream.take(count)
        except Exception as error:
            self.drop()
            raise connection_lost(self.endpoint, error) from error
        except BaseException:  # a cancelled caller leaves half a reply behind
            self.drop()
            raise
        self.drop()
        raise timeout_error(self.endpoint)

    async def receive_pushed(self, timeout: float) -> list[Any]:
        stream = self._stream
        if stream is None:
            raise connection_lost(self.endpoint, None)
        try:
            await stream.wait_for(1, timeout)
        except Exception as error:
            self.drop()
            raise connection_lost(self.endpoint, error) from error
        except BaseException:
            self.drop()
            raise
        return stream.take(len(stream.ready))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and stream.transport is not None:
            try:
                stream.transport.abort()
            except RuntimeError:  # the loop is closed, and the socket with it
                pass

    async def _open(self) -> _ReplyStream:
        endpoint, hiredis = self.endpoint, load_driver()
        loop = asyncio.get_running_loop()

        def protocol() -> _ReplyStream:
            return _ReplyStream(new_reader(), loop)

        try:
            async with asyncio.timeout(endpoint.connect_timeout):
                if endpoint.path is not None:
                    _, stream = await loop.create_unix_connection(protocol, endpoint.path)
                else:
                    name = endpoint.host if endpoint.tls else None
                    transport, stream = await loop.create_connection(
                        protocol, endpoint.host, endpoint.port, ssl=endpoint.tls, server_hostname=name
                    )
                    _tune(transport.get_extra_info("socket"))
                self._stream = stream
                assert stream.transport is not None
                stream.transport.write(b"".join(map(hiredis.pack_command, endpoint.greeting_commands())))
                endpoint.check_greeting(await self.receive(endpoint.greeting_count))
        except BaseException as error:
            self.drop()
            if isinstance(error, OSError | ConnectionLost):
                raise connect_error(endpoint, error) from error
            raise
        return stream


def _tune(sock: Any) -> None:
    """Send small packets at once, and notice a dead peer in the end."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

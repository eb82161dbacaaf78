"""AMQP 0-9-1 by its own wire: one socket, pamqp for the frames that are rare, and every refusal translated here.

A `Connection` moves frames and keeps the heartbeat; a `Channel` on it asks, publishes and takes deliveries. The frames
of a message are taken apart and put together in `amqp_frames`: a client library's path for each of them costs more than
the broker's own work.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, MissingDriver, show
from effectonce.values.urls import Address

HEADER: Final = Struct(">BHI")  # kind, channel, size of the payload; the payload and one byte follow
METHOD, CONTENT_HEADER, CONTENT_BODY = 1, 2, 3
DELIVER, CONFIRM = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x50"
FRAME_MAX: Final = 131_072
CLOSING_SECONDS: Final = 2.0


def driver() -> Any:
    """pamqp, imported when first needed."""
    try:
        import pamqp.commands
        import pamqp.frame
        import pamqp.header
    except ImportError:
        raise MissingDriver("RabbitMQ needs a driver: pip install 'effectonce[rabbitmq]'") from None
    return pamqp


class Refused(ConfigurationError):
    """The broker closed the channel or the connection, since something was asked that it does not do or allow."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[Refused], tuple[str, int]]:
        return type(self), (str(self), self.status)


class Endpoint:
    """Where a broker is, who we are there, and how long we wait. Takes its options from the address."""

    def __init__(self, address: Address) -> None:
        secure = address.scheme == "amqps"
        self.host, self.port = address.host or "localhost", address.port or (5671 if secure else 5672)
        self.user = "guest" if address.user is None else address.user
        self.password = "guest" if address.user is None and address.password is None else address.password or ""
        self.vhost = address.path[1:] or "/"
        self.timeout = address.seconds("timeout", 10.0)
        self.heartbeat = address.take("heartbeat", _heartbeat, 30)
        self.tls = address.tls(secure, "TLS, which is amqps://")
        self.shown = str(address)

    def __repr__(self) -> str:
        return f"Endpoint({self.shown!r})"


def _heartbeat(text: str) -> int:
    seconds = int(text.removesuffix("s"))
    if not 1 <= seconds <= 600:
        raise InvalidOption("the heartbeat is a whole number of seconds, from 1 to 600")
    return seconds


class Connection(asyncio.Protocol):
    """One socket. Made by `open`; ``lost`` says why it is no longer there."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self.endpoint = endpoint
        self.lost: Exception | None = None
        self.server: dict[str, Any] = {}
        self.frame_max = FRAME_MAX
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._pamqp = driver()
        self._unmarshal = self._pamqp.frame.unmarshal
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._writable: asyncio.Future[None] | None = None
        self._rest = b""
        self._channels: dict[int, Channel] = {}
        self._blocked = ""
        self._beat_after = 0.0
        self._silent = 0
        self._beating: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, endpoint: Endpoint, name: str) -> Connection:
        """Connect and log in. `BrokerUnavailable`, or `Refused` where trying again would not help."""
        self = cls(endpoint, name)
        try:
            async with asyncio.timeout(endpoint.timeout):
                await self._loop.create_connection(lambda: self, endpoint.host, endpoint.port, ssl=endpoint.tls)
                await self._ready
        except TimeoutError:
            self.drop(BrokerUnavailable(f"{endpoint.shown} did not answer within {endpoint.timeout:g} s"))
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"TLS with {endpoint.shown} failed ({show(error)}); is it the port for TLS, and its authority ca_file=?"
            ) from error
        except OSError as error:
            why = show(error) or type(error).__name__
            raise BrokerUnavailable(f"cannot connect to {endpoint.shown}: {why}") from error
        except BaseException as error:
            self.drop(error if isinstance(error, Exception) else ConnectionAbortedError("given up while connecting"))
            raise
        if self.lost is not None:
            raise self.lost
        return self

    # -- what the socket says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"AMQP\x00\x00\x09\x01")

    def data_received(self, data: bytes) -> None:
        self._silent = 0
        buffer = self._rest + data if self._rest else data
        at, length = 0, len(buffer)
        try:
            while length - at >= 8:
                kind, number, size = HEADER.unpack_from(buffer, at)
                end = at + size + 8
                if kind > 8 or size > self.frame_max:
                    raise ValueError("no frame of AMQP 0-9-1")
                if end > length:
                    break
                if buffer[end - 1] != 0xCE:
                    raise ValueError("a frame without its end")
                channel = self._channels.get(number)
                if kind == METHOD:
                    method = buffer[at + 7 : at + 11]
                    if method == DELIVER and channel is not None:
                        tag_at = at + 12 + buffer[at + 11]
                        channel.begun(int.from_bytes(buffer[tag_at : tag_at + 8], "big"))
                    elif method == CONFIRM and channel is not None:
                        tag = int.from_bytes(buffer[at + 11 : at + 19], "big")
                        channel.on_confirm(tag, bool(buffer[at + 19]), True)
                    else:
                        self._method(number, self._unmarshal(buffer[at:end])[2])
                elif channel is not None:
                    if kind == CONTENT_BODY:
                        channel.part(buffer[at + 7 : end - 1])
                    elif kind == CONTENT_HEADER:
                        channel.headed(buffer[at + 7 : end - 1])
                at = end
            self._rest = buffer[at:]
        except Exception as error:  # out of here it would be the loop's, and nobody would hear of it
            if self._ready.done():
                self.drop(BrokerUnavailable(f"{self.endpoint.shown} sent what cannot be read: {show(error)}"))
            else:
                self.drop(Refused(f"{self.endpoint.shown} does not speak AMQP 0-9-1", 0))

    def connection_lost(self, error: Exception | None) -> None:
        why = show(error) if error else "closed by the broker"
        self.drop(BrokerUnavailable(f"the connection to {self.endpoint.shown} broke ({why})"))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # -- frames

    def write(self, data: bytes) -> None:
        if self.lost is None and self._transport is not None:
            self._transport.write(data)

    def send(self, number: int, *frames: Any) -> None:
        encode = self._pamqp.frame.marshal
        self.write(b"".join(encode(frame, number) for frame in frames))

    async def drained(self) -> None:
        """Wait while the socket's buffer is full."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def _method(self, number: int, frame: Any) -> None:
        if number:
            channel = self._channels.get(number)
            if channel is not None:
                channel.method(frame)
            return
        commands = self._pamqp.commands.Connection
        name = frame.name
        if name == "Connection.Start":
            self.server = frame.server_properties or {}
            login = f"\0{self.endpoint.user}\0{self.endpoint.password}"
            self.send(0, commands.StartOk(self._introduction(), "PLAIN", login, "en_US"))
        elif name == "Connection.Tune":
            self.frame_max = frame.frame_max or FRAME_MAX
            beat = min(frame.heartbeat or self.endpoint.heartbeat, self.endpoint.heartbeat)
            self.send(0, commands.TuneOk(frame.channel_max, self.frame_max, beat), commands.Open(self.endpoint.vhost))
            self._beat_after = beat / 2
            self._beating = self._loop.call_later(self._beat_after, self._beat)
        elif name == "Connection.OpenOk":
            if not self._ready.done():
                self._ready.set_result(None)
        elif name == "Connection.Close":
            self.send(0, commands.CloseOk())
            self.drop(self._refusal(frame.reply_code, frame.reply_text))
        elif name == "Connection.CloseOk":
            self.drop(BrokerUnavailable(f"the connection to {self.endpoint.shown} is closed"))
        elif name == "Connection.Blocked":
            self._blocked = show(frame.reason)
        elif name == "Connection.Unblocked":
            self._blocked = ""

    def _introduction(self) -> dict[str, Any]:
        able = ("authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify")
        capabilities = dict.fromkeys((*able, "publisher_confirms"), True)
        return {"product": "effectonce", "connection_name": self._name, "capabilities": capabilities}

    def _refusal(self, status: int, text: str) -> Exception:
        shown, text = self.endpoint.shown, show(text, 300)
        if self._ready.done():
            return BrokerUnavailable(f"{shown} closed the connection ({text})")
        if status == 403:
            return Refused(f"{shown} refused the user or the password ({text}); correct them in the URL", status)
        if status == 530:
            return Refused(
                f"{shown} does not let this user into the vhost {show(self.endpoint.vhost)!r} ({text})", status
            )
        return BrokerUnavailable(f"{shown} refused the connection ({text})")

    def _beat(self) -> None:
        # Counted, not timed: where this process was stopped for long, what has come in meanwhile is read first.
        self._silent += 1
        if self._silent > 4:
            self.drop(BrokerUnavailable(f"{self.endpoint.shown} has been silent for {self._beat_after * 4:g} s"))
            return
        self.write(b"\x08\x00\x00\x00\x00\x00\x00\xce")
        self._beating = self._loop.call_later(self._beat_after, self._beat)

    def no_answer(self) -> BrokerUnavailable:
        """Drop the connection, since an answer did not come in time."""
        why = f": it blocks publishers ({self._blocked})" if self._blocked else ""
        error = BrokerUnavailable(f"{self.endpoint.shown} did not answer within {self.endpoint.timeout:g} s{why}")
        self.drop(error)
        return error

    # -- channels, and the end

    async def channel(self) -> Channel:
        number = next(n for n in range(1, 65_536) if n not in self._channels)
        self._channels[number] = channel = Channel(self, number)
        if self.lost is not None:
            channel.lose(self.lost)
        await channel.call(channel.commands.Channel.Open())
        return channel

    def forget(self, number: int) -> None:
        self._channels.pop(number, None)

    def drop(self, error: Exception) -> None:
        """Give it up: everyone who waits gets ``error``."""
        if self.lost is not None:
            return
        self.lost = error
        if self._beating is not None:
            self._beating.cancel()
        if self._transport is not None:
            self._transport.abort()  # what is left to write would wait for a broker that does not read
        self.resume_writing()
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # seen: `open` may have been cancelled
        for channel in list(self._channels.values()):
            channel.lose(error)

    async def close(self) -> None:
        """Say goodbye, so that the broker has read all that was written before it gives back what is unsettled."""
        if self.lost is None:
            self.send(0, self._pamqp.commands.Connection.Close(200, "closed", 0, 0))
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                await asyncio.shield(self._closed)
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
        self.drop(BrokerUnavailable(f"the connection to {self.endpoint.shown} is closed"))


def _nothing(*_: Any) -> None:
    return None


class Channel:
    """A line of its own on a connection. A refusal ends it; the connection lives on.

    What comes unasked goes to ``on_delivery(tag, header, body)``, ``on_return(routing_key, header, body)``, and
    ``on_confirm(tag, multiple, confirmed)``; ``on_lost(error)`` is called once, when it ends.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.commands = driver().commands
        self.lost: Exception | None = None
        self.on_delivery: Callable[[int, bytes, bytes], None] = _nothing
        self.on_return: Callable[[str, bytes, bytes], None] = _nothing
        self.on_confirm: Callable[[int, bool, bool], None] = _nothing
        self.on_lost: Callable[[Exception], None] = _nothing
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._content: Any = None  # of which content is on its way: a delivery's tag, or the frame of another
        self._header = b""
        self._parts: list[bytes] = []
        self._missing = 0

    async def call(self, *frames: Any) -> list[Any]:
        """Ask, and wait for all answers. A `Basic.GetOk` comes with its content, as (frame, header, body)."""
        if self.lost is not None:
            raise self.lost
        loop = asyncio.get_running_loop()
        asked = [loop.create_future() for _ in frames]
        self._asked.extend(asked)
        self.connection.send(self.number, *frames)
        try:
            async with asyncio.timeout(self.connection.endpoint.timeout):
                return [await each for each in asked]
        except TimeoutError:
            raise self.connection.no_answer() from None
        except asyncio.CancelledError:
            # An answer is on its way that nobody waits for: nothing may be asked behind it.
            self.connection.drop(BrokerUnavailable("given up while the broker was asked"))
            raise

    def write(self, data: bytes) -> None:
        self.connection.write(data)

    # -- what comes

    def begun(self, content: Any) -> None:
        self._content = content

    def headed(self, header: bytes) -> None:
        self._header = header
        self._missing = int.from_bytes(header[4:12], "big")
        if not self._missing:
            self._complete(b"")

    def part(self, body: bytes) -> None:
        self._missing -= len(body)
        if self._missing > 0:
            self._parts.append(body)
        elif self._parts:
            body = b"".join((*self._parts, body))
            self._parts.clear()
            self._complete(body)
        else:
            self._complete(body)

    def _complete(self, body: bytes) -> None:
        content = self._content
        if type(content) is int:
            self.on_delivery(content, self._header, body)
        elif content.name == "Basic.GetOk":
            self._answer((content, self._header, body))
        else:
            self.on_return(content.routing_key, self._header, body)

    def method(self, frame: Any) -> None:
        name = frame.name
        if name in ("Basic.GetOk", "Basic.Return"):
            self._content = frame
        elif name == "Basic.Nack":
            self.on_confirm(frame.delivery_tag, frame.multiple, False)
        elif name == "Channel.Close":
            self.connection.send(self.number, self.commands.Channel.CloseOk())
            self.connection.forget(self.number)
            self.lose(self._refusal(frame.reply_code, show(frame.reply_text, 400)))
        elif name == "Basic.Cancel":
            # What was delivered stays unsettled for as long as the channel is open.
            self.connection.send(self.number, self.commands.Channel.Close(200, "the consumer was ended", 0, 0))
            shown = self.connection.endpoint.shown
            self.lose(BrokerUnavailable(f"{shown} ended the consumer; was its queue deleted or moved?"))
        elif name == "Channel.CloseOk":
            self.connection.forget(self.number)
            self._answer(frame)
        elif name == "Channel.Flow":
            self.connection.send(self.number, self.commands.Channel.FlowOk(frame.active))
        else:
            self._answer(frame)

    def _answer(self, answer: Any) -> None:
        if self._asked:
            future = self._asked.popleft()
            if not future.done():
                future.set_result(answer)

    def _refusal(self, status: int, text: str) -> Exception:
        shown = self.connection.endpoint.shown
        if status == 403:
            return Refused(f"{shown} does not let this user do that ({text}); see rabbitmqctl set_permissions", status)
        if status in (404, 405, 406):
            return Refused(f"{shown} refused ({text})", status)
        return BrokerUnavailable(f"{shown} closed the channel ({text})")

    def lose(self, error: Exception) -> None:
        if self.lost is not None:
            return
        self.lost = error
        for future in self._asked:
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: of several that are waited for together only the first is raised
        self._asked.clear()
        self.on_lost(error)

    async def close(self) -> None:
        """End it; the broker gives back what is unsettled on it."""
        if self.lost is None:
            await self.call(self.commands.Channel.Close(200, "closed", 0, 0))
            self.lose(BrokerUnavailable("the channel is closed"))

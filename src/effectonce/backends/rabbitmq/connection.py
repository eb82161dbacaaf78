"""A connection to RabbitMQ: AMQP 0-9-1 on an asyncio transport of our own.

A `RabbitMQConnection` reads and writes frames and sends heartbeats; a `RabbitMQChannel` on it calls commands, publishes
and receives deliveries. pamqp encodes and decodes the rare frames. Those that each message costs are written by
`frames` and parsed in `data_received`: through a client library they cost more than the server's own work.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Final

from effectonce.errors import BrokerUnavailable, ConfigurationError, show

from .channel import RabbitMQChannel
from .endpoint import RabbitMQEndpoint, RabbitMQRefusal, load_driver
from .frames import CONTENT_BODY_FRAME, CONTENT_HEADER_FRAME, FRAME_END, FRAME_HEADER, HEARTBEAT_FRAME, METHOD_FRAME

BASIC_DELIVER: Final = b"\x00\x3c\x00\x3c"  # basic.deliver: the class 60 and the method 60
BASIC_ACK: Final = b"\x00\x3c\x00\x50"  # basic.ack, by which the server confirms: the class 60 and the method 80
FRAME_MAX: Final = 131_072
CLOSE_TIMEOUT_S: Final = 2.0
#: The connection counts as lost after so many of our own heartbeats without a byte from the server.
MAX_SILENT_BEATS: Final = 4


class RabbitMQConnection(asyncio.Protocol):
    """One socket, opened by `open`. ``lost`` is why it can no longer be used; None while it can."""

    def __init__(self, endpoint: RabbitMQEndpoint, name: str) -> None:
        self.endpoint = endpoint
        self.lost: Exception | None = None
        self.server_properties: dict[str, Any] = {}
        self.frame_max = FRAME_MAX
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._pamqp = load_driver()
        self._unmarshal = self._pamqp.frame.unmarshal
        self._transport: asyncio.Transport | None = None
        self._ready = asyncio.Event()  # logged in, or failed before
        self._closed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._unread = b""
        self._channels: dict[int, RabbitMQChannel] = {}
        self._blocked_reason = ""
        self._heartbeat_interval_s = 0.0
        self._silent_beats = 0
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, endpoint: RabbitMQEndpoint, name: str) -> RabbitMQConnection:
        """Connect and log in. Raises `BrokerUnavailable`; `RabbitMQRefusal` where trying again would not help."""
        self = cls(endpoint, name)
        try:
            async with asyncio.timeout(endpoint.timeout):
                await self._loop.create_connection(lambda: self, endpoint.host, endpoint.port, ssl=endpoint.tls)
                await self._ready.wait()
        except TimeoutError:
            self.fail(BrokerUnavailable(f"{endpoint.shown} did not answer within {endpoint.timeout:g} s"))
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"TLS with {endpoint.shown} failed ({show(error)}); check the port, and ca_file="
            ) from error
        except OSError as error:
            why = show(error) or type(error).__name__
            raise BrokerUnavailable(f"cannot connect to {endpoint.shown}: {why}") from error
        except BaseException as error:
            self.fail(error if isinstance(error, Exception) else ConnectionAbortedError("cancelled while connecting"))
            raise
        if self.lost is not None:
            raise self.lost
        return self

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"AMQP\x00\x00\x09\x01")

    def data_received(self, data: bytes) -> None:
        self._silent_beats = 0
        buffer = self._unread + data if self._unread else data
        at, length = 0, len(buffer)
        try:
            while length - at >= 8:
                kind, number, size = FRAME_HEADER.unpack_from(buffer, at)
                end = at + size + 8
                if kind > 8 or size > self.frame_max:
                    raise ValueError("this is not a frame of AMQP 0-9-1")
                if end > length:
                    break
                if buffer[end - 1] != FRAME_END:
                    raise ValueError("a frame has no end octet")
                channel = self._channels.get(number)
                if kind == METHOD_FRAME:
                    method = buffer[at + 7 : at + 11]
                    if method == BASIC_DELIVER and channel is not None:
                        tag_at = at + 12 + buffer[at + 11]  # behind the consumer tag, a short string
                        channel.start_delivery(int.from_bytes(buffer[tag_at : tag_at + 8], "big"))
                    elif method == BASIC_ACK and channel is not None:
                        tag = int.from_bytes(buffer[at + 11 : at + 19], "big")
                        channel.on_confirm(tag, bool(buffer[at + 19]), True)
                    else:
                        self._handle_method(number, self._unmarshal(buffer[at:end])[2])
                elif channel is not None:
                    if kind == CONTENT_BODY_FRAME:
                        channel.add_body(buffer[at + 7 : end - 1])
                    elif kind == CONTENT_HEADER_FRAME:
                        channel.set_header(buffer[at + 7 : end - 1])
                at = end
            self._unread = buffer[at:]
        except Exception as error:  # the event loop would only log it, and callers would wait for their timeout
            if self._ready.is_set():
                self.fail(BrokerUnavailable(f"{self.endpoint.shown} sent a frame that cannot be read: {show(error)}"))
            else:
                self.fail(RabbitMQRefusal(f"{self.endpoint.shown} does not speak AMQP 0-9-1", 0))

    def connection_lost(self, error: Exception | None) -> None:
        why = show(error) if error else "closed by the broker"
        self.fail(BrokerUnavailable(f"the connection to {self.endpoint.shown} broke ({why})"))
        self._closed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- frames

    def write(self, data: bytes) -> None:
        if self.lost is None and self._transport is not None:
            self._transport.write(data)

    def send(self, number: int, *frames: Any) -> None:
        """Send frames of pamqp on the channel ``number``; 0 is the connection itself."""
        encode = self._pamqp.frame.marshal
        self.write(b"".join(encode(frame, number) for frame in frames))

    async def drain(self) -> None:
        """Wait while the socket's buffer is full."""
        await self._writable.wait()

    def _handle_method(self, number: int, frame: Any) -> None:
        if number:
            channel = self._channels.get(number)
            if channel is not None:
                channel.handle_method(frame)
            return
        commands = self._pamqp.commands.Connection
        name = frame.name
        if name == "Connection.Start":
            self.server_properties = frame.server_properties or {}
            login = f"\0{self.endpoint.user}\0{self.endpoint.password}"
            self.send(0, commands.StartOk(self._client_properties(), "PLAIN", login, "en_US"))
        elif name == "Connection.Tune":
            self.frame_max = frame.frame_max or FRAME_MAX
            heartbeat = min(frame.heartbeat or self.endpoint.heartbeat, self.endpoint.heartbeat)
            self.send(
                0, commands.TuneOk(frame.channel_max, self.frame_max, heartbeat), commands.Open(self.endpoint.vhost)
            )
            self._heartbeat_interval_s = heartbeat / 2
            self._heartbeat_timer = self._loop.call_later(self._heartbeat_interval_s, self._send_heartbeat)
        elif name == "Connection.OpenOk":
            self._ready.set()
        elif name == "Connection.Close":
            self.send(0, commands.CloseOk())
            self.fail(self._refusal(frame.reply_code, frame.reply_text))
        elif name == "Connection.CloseOk":
            self.fail(BrokerUnavailable(f"the connection to {self.endpoint.shown} is closed"))
        elif name == "Connection.Blocked":
            self._blocked_reason = show(frame.reason)
        elif name == "Connection.Unblocked":
            self._blocked_reason = ""

    def _client_properties(self) -> dict[str, Any]:
        supported = ("authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify")
        capabilities = dict.fromkeys((*supported, "publisher_confirms"), True)
        return {"product": "effectonce", "connection_name": self._name, "capabilities": capabilities}

    def _refusal(self, status: int, text: str) -> Exception:
        shown, text = self.endpoint.shown, show(text, 300)
        if self._ready.is_set():
            return BrokerUnavailable(f"{shown} closed the connection ({text})")
        if status == 403:
            return RabbitMQRefusal(
                f"{shown} refused the user or the password ({text}); correct them in the URL", status
            )
        if status == 530:
            return RabbitMQRefusal(
                f"{shown} does not let this user into the vhost {show(self.endpoint.vhost)!r} ({text})", status
            )
        return BrokerUnavailable(f"{shown} refused the connection ({text})")

    def _send_heartbeat(self) -> None:
        # Heartbeats are counted, not timed: after this process was suspended, it first reads what arrived meanwhile.
        self._silent_beats += 1
        if self._silent_beats > MAX_SILENT_BEATS:
            self.fail(
                BrokerUnavailable(
                    f"{self.endpoint.shown} has been silent for {self._heartbeat_interval_s * MAX_SILENT_BEATS:g} s"
                )
            )
            return
        self.write(HEARTBEAT_FRAME)
        self._heartbeat_timer = self._loop.call_later(self._heartbeat_interval_s, self._send_heartbeat)

    def fail_unanswered(self) -> BrokerUnavailable:
        """End the connection, since a reply did not come in time. Returns the error for the caller to raise."""
        why = f": it blocks publishers ({self._blocked_reason})" if self._blocked_reason else ""
        error = BrokerUnavailable(f"{self.endpoint.shown} did not answer within {self.endpoint.timeout:g} s{why}")
        self.fail(error)
        return error

    # -- channels, and closing

    async def open_channel(self) -> RabbitMQChannel:
        number = next(n for n in range(1, 65_536) if n not in self._channels)
        self._channels[number] = channel = RabbitMQChannel(self, number)
        if self.lost is not None:
            channel.fail(self.lost)
        await channel.call(channel.commands.Channel.Open())
        return channel

    def remove_channel(self, number: int) -> None:
        self._channels.pop(number, None)

    def fail(self, error: Exception) -> None:
        """End the connection: every caller that waits for an answer gets ``error``."""
        if self.lost is not None:
            return
        self.lost = error
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        if self._transport is not None:
            self._transport.abort()  # `close` would first send what is buffered, to a server that may not read
        self.resume_writing()
        self._ready.set()
        for channel in list(self._channels.values()):
            channel.fail(error)

    async def close(self) -> None:
        """Close by the protocol, so that the server reads every ack before it requeues unsettled messages."""
        if self.lost is None:
            self.send(0, self._pamqp.commands.Connection.Close(200, "closed", 0, 0))
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._closed.wait()
        self.fail(BrokerUnavailable(f"the connection to {self.endpoint.shown} is closed"))

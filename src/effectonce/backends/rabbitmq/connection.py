"""A connection to RabbitMQ: AMQP 0-9-1 on an asyncio transport of our own.

A `RabbitMQConnection` reads and writes frames and sends heartbeats; a `RabbitMQChannel` on it calls commands, publishes
and receives deliveries. pamqp encodes and decodes the rare frames. Those that each message costs are written by
`frames` and parsed in `data_received`: through a client library they cost more than the server's own work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any, Final

from effectonce.backends.common.tls import tls_refusal
from effectonce.errors import BrokerUnavailable, ConfigurationError, show

from .channel import RabbitMQChannel
from .endpoint import Host, RabbitMQEndpoint, RabbitMQRefusal, load_driver
from .frames import (
    CONTENT_BODY_FRAME,
    CONTENT_HEADER_FRAME,
    FRAME_END,
    FRAME_HEADER,
    FRAME_OVERHEAD_BYTES,
    HEARTBEAT_FRAME,
    HIGHEST_FRAME_KIND,
    METHOD_FRAME,
)
from .login import Login
from .publish_gate import PublishGate

log = logging.getLogger("effectonce")

BASIC_DELIVER: Final = b"\x00\x3c\x00\x3c"  # basic.deliver: the class 60 and the method 60
BASIC_ACK: Final = b"\x00\x3c\x00\x50"  # basic.ack, by which the server confirms: the class 60 and the method 80
FRAME_MAX: Final = 131_072
MAX_CHANNELS: Final = 65_535
CLOSE_TIMEOUT_S: Final = 2.0
#: A host with several addresses: after so long without an answer of one, the next is tried beside it.
HAPPY_EYEBALLS_DELAY_S: Final = 0.25
#: How often the caller's password function is asked whether the password has changed.
PASSWORD_CHECK_INTERVAL_S: Final = 60.0
#: The connection counts as lost after so many of our own heartbeats without a byte from the server.
MAX_SILENT_BEATS: Final = 4


class RabbitMQConnection(asyncio.Protocol):
    """One socket, opened by `open`. ``lost`` is why it can no longer be used; None while it can."""

    def __init__(self, endpoint: RabbitMQEndpoint, purpose: str) -> None:
        self.endpoint = endpoint
        self.lost: Exception | None = None
        self.server_properties: dict[str, Any] = {}
        self.frame_max = FRAME_MAX
        self.channel_max = MAX_CHANNELS
        self.gate = PublishGate(endpoint.shown, endpoint.blocked_timeout)
        self._purpose = purpose
        self._password = ""
        self._login: Login | None = None
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
        self._heartbeat_interval_s = 0.0
        self._silent_beats = 0
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._password_task: asyncio.Task[None] | None = None
        self._password_updated: asyncio.Event = asyncio.Event()

    @classmethod
    async def open(cls, endpoint: RabbitMQEndpoint, purpose: str) -> RabbitMQConnection:
        """Connect to the first host that answers, and log in. Raises `BrokerUnavailable` where none does;
        `RabbitMQRefusal` where trying again, or another host, would not help."""
        failures: list[tuple[Host, BrokerUnavailable]] = []
        for host in endpoint.hosts:
            connection = cls(endpoint, purpose)
            try:
                await connection._open(host)
            except BrokerUnavailable as error:
                failures.append((host, error))
                continue
            endpoint.prefer(host)
            return connection
        if len(failures) == 1:
            raise failures[0][1]
        reasons = "; ".join(f"{host}: {error}" for host, error in failures)
        raise BrokerUnavailable(f"no host of {endpoint.shown} can be used ({reasons})") from failures[0][1]

    async def _open(self, host: Host) -> None:
        endpoint = self.endpoint
        try:
            async with asyncio.timeout(endpoint.connection_timeout):
                self._password = await endpoint.read_password()
                await self._loop.create_connection(
                    lambda: self, *host, ssl=endpoint.tls, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S
                )
                await self._ready.wait()
        except TimeoutError:
            self.fail(BrokerUnavailable(f"{endpoint.shown} did not answer within {endpoint.connection_timeout:g} s"))
        except OSError as error:
            if refusal := tls_refusal(error, endpoint.shown):
                raise refusal from error
            why = show(error) or type(error).__name__
            raise BrokerUnavailable(f"cannot connect to {endpoint.shown}: {why}") from error
        except BaseException as error:
            self.fail(error if isinstance(error, Exception) else ConnectionAbortedError("cancelled while connecting"))
            raise
        if self.lost is not None:
            raise self.lost
        if endpoint.password_provider is not None:
            self._password_task = asyncio.create_task(self._renew_password())

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:  # without heartbeats, the system notices a dead server
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.write(b"AMQP\x00\x00\x09\x01")

    def data_received(self, data: bytes) -> None:
        self._silent_beats = 0
        buffer = self._unread + data if self._unread else data
        at, length = 0, len(buffer)
        try:
            while length - at >= FRAME_OVERHEAD_BYTES:
                kind, number, size = FRAME_HEADER.unpack_from(buffer, at)
                end = at + size + FRAME_OVERHEAD_BYTES
                if kind > HIGHEST_FRAME_KIND or size > self.frame_max:
                    raise ValueError("this is not a frame of AMQP 0-9-1")
                if end > length:
                    break
                if buffer[end - 1] != FRAME_END:
                    raise ValueError("a frame has no end octet")
                channel = self._channels.get(number)
                payload_at = at + FRAME_HEADER.size
                if kind == METHOD_FRAME:
                    arguments_at = payload_at + 4  # behind the class and the method
                    method = buffer[payload_at:arguments_at]
                    if method == BASIC_DELIVER and channel is not None:
                        tag_at = arguments_at + 1 + buffer[arguments_at]  # behind the consumer tag, a short string
                        channel.start_delivery(int.from_bytes(buffer[tag_at : tag_at + 8], "big"))
                    elif method == BASIC_ACK and channel is not None:
                        tag = int.from_bytes(buffer[arguments_at : arguments_at + 8], "big")
                        channel.on_confirm(tag, bool(buffer[arguments_at + 8]), True)
                    else:
                        self._handle_method(number, self._unmarshal(buffer[at:end])[2])
                elif channel is not None:
                    if kind == CONTENT_BODY_FRAME:
                        channel.add_body(buffer[payload_at : end - 1])
                    elif kind == CONTENT_HEADER_FRAME:
                        channel.set_header(buffer[payload_at : end - 1])
                at = end
            self._unread = buffer[at:]
        except Exception as error:  # the event loop would only log it, and callers would wait for their timeout
            if self._ready.is_set():
                self.fail(BrokerUnavailable(f"{self.endpoint.shown} sent a frame that cannot be read: {show(error)}"))
            else:
                self.fail(RabbitMQRefusal(f"{self.endpoint.shown} does not speak AMQP 0-9-1", 0))

    def connection_lost(self, error: Exception | None) -> None:
        why = show(error) if error else "closed by the broker"
        # With TLS 1.3 a server that refuses our certificate says so only after the handshake.
        refusal = None if self._ready.is_set() else tls_refusal(error, self.endpoint.shown)
        self.fail(refusal or BrokerUnavailable(f"the connection to {self.endpoint.shown} broke ({why})"))
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
            try:
                self._login = Login(self.endpoint, self._password, frame.mechanisms)
            except RabbitMQRefusal as error:
                self.fail(error)
            else:
                self.write(self._login.encode_start_ok(self._client_properties()))
        elif name == "Connection.Secure" and self._login is not None:
            self.write(self._login.encode_secure_ok())
        elif name == "Connection.Tune":
            endpoint = self.endpoint
            self.frame_max = _smaller_limit(frame.frame_max, endpoint.frame_max) or FRAME_MAX
            self.channel_max = _smaller_limit(frame.channel_max, endpoint.channel_max) or MAX_CHANNELS
            heartbeat = min(frame.heartbeat or endpoint.heartbeat, endpoint.heartbeat)
            self.send(
                0,
                commands.TuneOk(_smaller_limit(frame.channel_max, endpoint.channel_max), self.frame_max, heartbeat),
                commands.Open(endpoint.vhost),
            )
            if heartbeat:
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
            self.gate.close(0, frame.reason)
        elif name == "Connection.Unblocked":
            self.gate.open(0)
        elif name == "Connection.UpdateSecretOk":
            self._password_updated.set()

    def _client_properties(self) -> dict[str, Any]:
        supported = ("authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify")
        capabilities = dict.fromkeys((*supported, "publisher_confirms"), True)
        name = f"{self.endpoint.name} {self._purpose}".rstrip()
        return {"product": "effectonce", "connection_name": name, "capabilities": capabilities}

    async def _renew_password(self) -> None:
        """Send the server each new password while the connection is in use: where it is a token, it expires, and the
        connection with it. A server that refuses the new one closes the connection."""
        while True:
            await asyncio.sleep(PASSWORD_CHECK_INTERVAL_S)
            try:
                password = await self.endpoint.read_password()
            except BrokerUnavailable as error:  # the last one may still be valid for a while
                log.warning("%s; it is asked again in %g s", error, PASSWORD_CHECK_INTERVAL_S)
                continue
            if password != self._password:
                self._password = password
                self._password_updated.clear()
                self.send(0, self._pamqp.commands.Connection.UpdateSecret(password, "the password has changed"))
                try:
                    async with asyncio.timeout(self.endpoint.timeout):
                        await self._password_updated.wait()
                except TimeoutError:
                    self.fail_unanswered()
                    return

    def _refusal(self, status: int, text: str) -> Exception:
        shown, text = self.endpoint.shown, show(text, 300)
        if self._ready.is_set():
            return BrokerUnavailable(f"{shown} closed the connection ({text})")
        if status == 403 and self._login is not None and self._login.mechanism == "EXTERNAL":
            return RabbitMQRefusal(
                f"{shown} refused the client certificate ({text}); give the server a user of the certificate's name",
                status,
            )
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
        error = BrokerUnavailable(f"{self.endpoint.shown} did not answer within {self.endpoint.timeout:g} s")
        if not self.gate.is_open:
            error = self.gate.error()
        self.fail(error)
        return error

    # -- channels, and closing

    async def open_channel(self) -> RabbitMQChannel:
        number = next((n for n in range(1, self.channel_max + 1) if n not in self._channels), None)
        if number is None:
            raise ConfigurationError(
                f"{self.endpoint.shown} allows {self.channel_max} channels on a connection, and effectonce needs "
                f"another one; raise channel_max, of the server or in the URL"
            )
        self._channels[number] = channel = RabbitMQChannel(self, number)
        if self.lost is not None:
            channel.fail(self.lost)
        await channel.call(channel.commands.Channel.Open())
        return channel

    def remove_channel(self, number: int) -> None:
        self._channels.pop(number, None)
        self.gate.open(number)

    def fail(self, error: Exception) -> None:
        """End the connection: every caller that waits for an answer gets ``error``."""
        if self.lost is not None:
            return
        self.lost = error
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        if self._password_task is not None:
            self._password_task.cancel()
        if self._transport is not None:
            self._transport.abort()  # `close` would first send what is buffered, to a server that may not read
        self.resume_writing()
        self.gate.open_for_good()
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


def _smaller_limit(server: int, ours: int) -> int:
    """The limit that both sides keep to. 0 of either side means that it has none."""
    return min(server or ours, ours or server)

"""A channel of AMQP 0-9-1: commands with their replies, deliveries, returns and confirms."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from effectonce.errors import BrokerUnavailable, show

from . import frames
from .endpoint import RabbitMQRefusal, load_driver

if TYPE_CHECKING:
    from .connection import RabbitMQConnection


def _ignore(*_: Any) -> None:
    return None


class RabbitMQChannel:
    """One channel on a connection. A command that the server refuses ends the channel; the connection stays open.

    The owner sets callbacks for what the server sends by itself: ``on_delivery(tag, header, body)``,
    ``on_return(routing_key, header, body)`` and ``on_confirm(tag, multiple, confirmed)``. ``on_lost(error)`` is called
    once, when the channel ends. ``header`` is the payload of a content header frame, with the message's properties.
    """

    def __init__(self, connection: RabbitMQConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.commands = load_driver().commands
        self.lost: Exception | None = None
        self.on_delivery: Callable[[int, bytes, bytes], None] = _ignore
        self.on_return: Callable[[str, bytes, bytes], None] = _ignore
        self.on_confirm: Callable[[int, bool, bool], None] = _ignore
        self.on_lost: Callable[[Exception], None] = _ignore
        self._replies: deque[asyncio.Future[Any]] = deque()  # one for each unanswered command, in the order of sending
        # The content that is arriving belongs to this: the tag of a delivery, or the frame of a Basic.GetOk or
        # Basic.Return. The server sends the header frame and the body frames behind it.
        self._content: Any = None
        self._header = b""
        self._body_parts: list[bytes] = []
        self._missing_bytes = 0

    async def call(self, *commands: Any) -> list[Any]:
        """Send ``commands``, and return their replies. That of a successful `Basic.Get` is (frame, header, body).

        If the channel has ended, or ends before all replies are there, the error that ended it is raised.
        """
        if self.lost is not None:
            raise self.lost
        loop = asyncio.get_running_loop()
        replies = [loop.create_future() for _ in commands]
        self._replies.extend(replies)
        self.connection.send(self.number, *commands)
        try:
            async with asyncio.timeout(self.connection.endpoint.timeout):
                return [await reply for reply in replies]
        except TimeoutError:
            raise self.connection.fail_unanswered() from None
        except asyncio.CancelledError:
            # A reply is on its way, and the next command would take it for its own: so the connection ends.
            self.connection.fail(BrokerUnavailable("the call was cancelled before the server had answered"))
            raise

    def ack(self, tags: Iterable[int]) -> None:
        self.connection.write(b"".join(frames.encode_ack(self.number, tag) for tag in tags))

    def requeue(self, tags: Iterable[int]) -> None:
        self.connection.write(b"".join(frames.encode_requeue(self.number, tag) for tag in tags))

    # -- frames from the server, called by the connection

    def start_delivery(self, tag: int) -> None:
        self._content = tag

    def set_header(self, header: bytes) -> None:
        self._header = header
        self._missing_bytes = int.from_bytes(header[frames.PROPERTIES_AT - 8 : frames.PROPERTIES_AT], "big")
        if not self._missing_bytes:
            self._finish_content(b"")

    def add_body(self, body: bytes) -> None:
        self._body_parts.append(body)
        self._missing_bytes -= len(body)
        if self._missing_bytes <= 0:
            body, self._body_parts = b"".join(self._body_parts), []
            self._finish_content(body)

    def _finish_content(self, body: bytes) -> None:
        content = self._content
        if type(content) is int:
            self.on_delivery(content, self._header, body)
        elif content.name == "Basic.GetOk":
            self._set_reply((content, self._header, body))
        else:
            self.on_return(content.routing_key, self._header, body)

    def handle_method(self, frame: Any) -> None:
        name = frame.name
        if name in ("Basic.GetOk", "Basic.Return"):
            self._content = frame
        elif name == "Basic.Nack":
            self.on_confirm(frame.delivery_tag, frame.multiple, False)
        elif name == "Channel.Close":
            self.connection.send(self.number, self.commands.Channel.CloseOk())
            self.connection.remove_channel(self.number)
            self.fail(self._refusal(frame.reply_code, show(frame.reply_text, 400)))
        elif name == "Basic.Cancel":
            # Its deliveries would stay unsettled for as long as the channel is open: so close it.
            shown = self.connection.endpoint.shown
            causes = "its queue was deleted or moved, or it held a delivery for longer than consumer_timeout"
            self.abandon(BrokerUnavailable(f"{shown} cancelled the consumer: {causes}"))
        elif name == "Channel.CloseOk":
            self.connection.remove_channel(self.number)
            self._set_reply(frame)
        elif name == "Channel.Flow":
            if frame.active:
                self.connection.gate.open(self.number)
            else:
                self.connection.gate.close(self.number, "it has paused the channel")
            self.connection.send(self.number, self.commands.Channel.FlowOk(frame.active))
        else:
            self._set_reply(frame)

    def _set_reply(self, reply: Any) -> None:
        if self._replies:
            future = self._replies.popleft()
            if not future.done():
                future.set_result(reply)

    def _refusal(self, status: int, text: str) -> Exception:
        shown = self.connection.endpoint.shown
        if status == 403:
            return RabbitMQRefusal(
                f"{shown} does not let this user do that ({text}); see rabbitmqctl set_permissions", status
            )
        if status in (404, 405, 406):
            return RabbitMQRefusal(f"{shown} refused ({text})", status)
        return BrokerUnavailable(f"{shown} closed the channel ({text})")

    def fail(self, error: Exception) -> None:
        """End the channel: every caller that waits for a reply gets ``error``."""
        if self.lost is not None:
            return
        self.lost = error
        for reply in self._replies:
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # mark it as retrieved: of several replies, only the error of the first is raised
        self._replies.clear()
        self.on_lost(error)

    def abandon(self, error: Exception) -> None:
        """End the channel with ``error``, and close it without waiting for the server, which may not read now."""
        self.connection.send(self.number, self.commands.Channel.Close(200, "abandoned", 0, 0))
        self.fail(error)

    async def close(self) -> None:
        """Close the channel; the server requeues what is unsettled on it."""
        if self.lost is None:
            await self.call(self.commands.Channel.Close(200, "closed", 0, 0))
            self.fail(BrokerUnavailable("the channel is closed"))

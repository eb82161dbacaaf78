"""NATS through nats-py: one connection that is not repaired behind our back, questions with their answers, and every
error translated.

nats-py would connect again by itself, and keep what is published meanwhile in a buffer: nobody would know what was
sent. A lost connection is an error here; whoever asks next gets a new one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from effectonce.errors import BrokerUnavailable, ConfigurationError, MissingDriver, show
from effectonce.values.urls import Address, flag

API: Final = "$JS.API"
PING_SECONDS: Final = 20


def driver() -> Any:
    """nats-py, imported when first needed."""
    try:
        import nats.aio.client
        import nats.errors
    except ImportError:
        raise MissingDriver("NATS needs a driver: pip install 'effectonce[nats]'") from None
    return nats


class Refused(ConfigurationError):
    """JetStream answered with an error. ``number`` is its own for what went wrong, ``status`` that of HTTP."""

    def __init__(self, message: str, status: int = 0, number: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.number = number

    def __reduce__(self) -> tuple[type[Refused], tuple[str, int, int]]:
        return type(self), (str(self), self.status, self.number)


class Endpoint:
    """Where the servers are, who we are there, and how long we wait. Takes its options from the address."""

    def __init__(self, address: Address) -> None:
        no_nodes: list[str] = []
        here = f"{address.host or 'localhost'}:{address.port or 4222}"
        self.nodes = [here, *address.take("nodes", lambda text: text.split(","), no_nodes)]
        self.timeout = address.seconds("timeout", 5.0)
        self.login: dict[str, Any] = {}
        if address.password is not None:
            self.login = {"user": address.user or "", "password": address.password}
        elif address.user is not None:
            self.login = {"token": address.user}
        if credentials := address.take("credentials", str, ""):
            self.login = {"user_credentials": credentials}
        self.tls = address.tls(address.take("tls", flag, False), "tls=true")
        # A user without a password is a token, which is a secret too.
        self.shown = str(address) if "token" not in self.login else f"nats://***@{address.netloc}"

    def __repr__(self) -> str:
        return f"Endpoint({self.shown!r})"


class Line:
    """One connection, for as long as it lives; ``lost`` says why it no longer does."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.client: Any = None
        self.lost: Exception | None = None
        self.on_lost: Callable[[], None] | None = None
        self._inbox = ""
        self._number = 0
        self._asked: dict[str, asyncio.Future[Any]] = {}

    @classmethod
    async def open(cls, endpoint: Endpoint, name: str) -> Line:
        line = cls(endpoint)
        try:
            await line._connect(name)
            line._inbox = line.client.new_inbox()
            await line.subscribe(f"{line._inbox}.*", line._answered)
        except BaseException:
            await line.close()
            raise
        return line

    async def _connect(self, name: str) -> None:
        endpoint, errors = self.endpoint, driver().errors
        nodes = endpoint.nodes if len(endpoint.nodes) == 1 else random.sample(endpoint.nodes, len(endpoint.nodes))
        for last, node in enumerate(nodes, 1 - len(nodes)):
            self.client = driver().aio.client.Client()  # one that failed goes on asking the server it failed at
            try:
                async with asyncio.timeout(endpoint.timeout):
                    await self.client.connect(
                        f"nats://{node}",
                        name=name,
                        allow_reconnect=False,
                        connect_timeout=endpoint.timeout,
                        ping_interval=PING_SECONDS,
                        error_cb=self._heard,
                        closed_cb=self._closed,
                        tls=endpoint.tls,
                        **endpoint.login,
                    )
                break
            except errors.AuthorizationError as error:
                raise self._denied() from error
            except (OSError, TimeoutError, errors.Error) as error:
                if "authorization" in str(error).lower() or "authentication" in str(error).lower():
                    raise self._denied() from error
                if last == 0:
                    why = show(error) or type(error).__name__
                    raise BrokerUnavailable(f"cannot connect to {endpoint.shown}: {why}") from error

    def _denied(self) -> ConfigurationError:
        return ConfigurationError(f"{self.endpoint.shown} refused the user, the password or the token; correct them")

    async def _heard(self, error: Exception) -> None:
        """What nats-py would log."""
        if not self._inbox:
            raise error  # else it would try the same server again, for minutes
        if "permissions violation" in str(error).lower():
            # Nobody is told which question it was, and that will never be answered.
            self._lose(ConfigurationError(f"{self.endpoint.shown} does not let this user do that: {show(error, 300)}"))

    async def _closed(self) -> None:
        self._lose(self._broken())

    def _broken(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the connection to {self.endpoint.shown} broke")

    def _lose(self, why: Exception) -> Exception:
        if self.lost is None:
            self.lost = why
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(self.lost)
                    future.exception()  # seen: its caller may have given up
            if self.on_lost is not None:
                self.on_lost()
        return self.lost

    async def subscribe(self, subject: str, callback: Callable[[Any], Awaitable[None]]) -> Any:
        return await self._through(self.client.subscribe(subject, cb=callback))

    async def send(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        await self._through(self.client.publish(subject, payload, reply=reply, headers=headers))

    async def ask(
        self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[Any]:
        """Send a question; the future gets the message that answers it. See `answers`."""
        if self.lost is not None:
            raise self.lost
        self._number += 1
        token = f"{self._number:x}"
        future = self._asked[token] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: self._asked.pop(token, None))
        try:
            await self.send(subject, payload, f"{self._inbox}.{token}", headers)
        except BaseException:
            future.cancel()
            raise
        return future

    async def answers(self, *futures: asyncio.Future[Any]) -> list[Any]:
        """All answers, in order, within the timeout."""
        try:
            async with asyncio.timeout(self.endpoint.timeout):
                return [await future for future in futures]
        except TimeoutError:
            # Not closed for it: where this is JetStream's own trouble, a new connection would not help.
            raise BrokerUnavailable(
                f"{self.endpoint.shown} did not answer within {self.endpoint.timeout:g} s"
            ) from None
        finally:
            for future in futures:
                future.cancel()

    async def _answered(self, message: Any) -> None:
        future = self._asked.get(message.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(message)

    async def api(self, what: str, body: Any = None) -> dict[str, Any]:
        """Ask JetStream; `Refused` where it answers with an error."""
        question = await self.ask(f"{API}.{what}", b"" if body is None else msgspec.json.encode(body))
        (answer,) = await self.answers(question)
        if status_of(answer) == 503:
            raise Refused(
                f"{self.endpoint.shown} has no JetStream; start the server with -js, or give it to this account",
                503,
            )
        found: dict[str, Any] = msgspec.json.decode(answer.data)
        if "error" in found:
            raise self.refusal(found["error"])
        return found

    def refusal(self, error: Mapping[str, Any]) -> Exception:
        status = int(error.get("code", 0))
        text = f"{self.endpoint.shown} refused: {show(error.get('description', ''), 300)}"
        if status >= 500:  # no leader, no resources: a matter of time or of room
            return BrokerUnavailable(text)
        return Refused(text, status, int(error.get("err_code", 0)))

    async def flush(self) -> None:
        """Wait until the server has read all that was sent."""
        await self._through(self.client.flush(self.endpoint.timeout))

    async def _through(self, work: Awaitable[Any]) -> Any:
        errors = driver().errors
        try:
            return await work
        except errors.TimeoutError:
            raise BrokerUnavailable(
                f"{self.endpoint.shown} did not answer within {self.endpoint.timeout:g} s"
            ) from None
        except (errors.ConnectionClosedError, errors.StaleConnectionError, OSError) as error:
            raise self._lose(self._broken()) from error

    async def close(self) -> None:
        try:
            await self.client.close()
        except (OSError, driver().errors.Error):
            pass
        self._lose(BrokerUnavailable(f"the connection to {self.endpoint.shown} is closed"))


def status_of(message: Any) -> int:
    """The status of a message that is no message but a word of the server; 0 for all others."""
    status = (message.headers or {}).get("Status", "") if not message.data else ""
    return int(status) if status.isdigit() else 0

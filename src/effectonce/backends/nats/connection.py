"""One connection to NATS through nats-py: requests and their replies, with every error translated.

nats-py can reconnect by itself. It then buffers publishes meanwhile, and the caller cannot know which of them were
sent. That is switched off here: a lost connection is an error, and the next caller opens another.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from effectonce.backends.common.drivers import require_driver
from effectonce.backends.common.tls import take_tls, tls_failed, tls_refusal
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, show
from effectonce.values.urls import Address, HostPort

PING_INTERVAL_S: Final = 20
#: How long `close` waits for a connection that was never ready.
FAILED_CLOSE_TIMEOUT_S: Final = 0.1


def load_driver() -> Any:
    """Import nats-py. This is called when NATS is first used."""
    import nats.aio.client
    import nats.errors

    return nats


class JetStreamRefusal(ConfigurationError):
    """JetStream replied with an error. ``err_code`` is JetStream's own code, ``status`` is like one of HTTP."""

    def __init__(self, message: str, status: int = 0, err_code: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.err_code = err_code

    def __reduce__(self) -> tuple[type[JetStreamRefusal], tuple[str, int, int]]:
        return type(self), (str(self), self.status, self.err_code)


class NatsEndpoint:
    """The servers' addresses, the login and the timeout, read from a URL."""

    def __init__(self, address: Address) -> None:
        if address.password is None and address.user:  # a user without a password is a token, which is a secret too
            address.hide_user()
        self.shown = str(address)
        self.nodes = [format_node(node) for node in address.hosts]
        self.timeout = address.seconds("timeout", 5.0)
        self.login: dict[str, Any] = {}
        if address.password is not None:
            self.login = {"user": address.user or "", "password": address.password}
        elif address.user is not None:
            self.login = {"token": address.user}
        credentials, seed_file = address.take("credentials", str, ""), address.take("nkey_file", str, "")
        if credentials and seed_file:
            raise InvalidOption(f"{address} has both credentials and nkey_file; leave one of them out")
        if credentials or seed_file:
            require_driver("a login by credentials or nkey", "nats", "nkeys")
            _require_key(address, credentials, seed_file)
            self.login = {"user_credentials": credentials} if credentials else {"nkeys_seed": seed_file}
        tls = take_tls(address)
        self.tls = tls.make_context(self.shown) if tls else None
        self.inbox_prefix = address.take("inbox_prefix", _parse_subject, "_INBOX")
        domain = address.take("domain", _parse_subject, "")
        self.monitoring = address.take("monitoring", _parse_http_url, "")
        #: What the subjects of JetStream's API begin with.
        self.jetstream_api = f"$JS.{domain}.API" if domain else "$JS.API"

    def login_options(self, server_info: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The login, as nats-py takes it. Passwords and tokens are functions: nats-py calls them when it sends them,
        and would send them in plain text where the server, or an attacker in its place, offers no TLS."""

        def reveal(secret: str) -> str:
            if self.tls is not None and not server_info().get("tls_required"):
                raise tls_failed(self.shown, "the server does not ask for TLS")
            return secret

        secrets = {"user", "password", "token"}
        return {name: partial(reveal, value) if name in secrets else value for name, value in self.login.items()}

    def __repr__(self) -> str:
        return f"NatsEndpoint({self.shown!r})"


def format_node(node: HostPort) -> str:
    host = f"[{node.host}]" if ":" in node.host else node.host or "localhost"
    return f"{host}:{node.port or 4222}"


def _require_key(address: Address, credentials: str, seed_file: str) -> None:
    """Refuse a file that holds no key: nats-py reads it at each login, and its errors would look like an outage."""
    import nkeys

    try:
        content = Path(credentials or seed_file).read_bytes()
    except OSError as error:
        raise InvalidOption(f"the key of {address} cannot be read: {error.strerror or error}") from None
    if credentials:
        is_key = b"BEGIN NATS USER JWT" in content and b"BEGIN USER NKEY SEED" in content
    else:
        try:
            nkeys.from_seed(bytearray(content.strip())).wipe()
            is_key = True
        except (ValueError, nkeys.NkeysError):
            is_key = False
    if not is_key:
        what = "credentials with a JWT and a seed" if credentials else "the seed of a key"
        raise InvalidOption(f"the file that {address} names does not hold {what}; make it with nsc or nk")


def _parse_http_url(text: str) -> str:
    if urlsplit(text).scheme not in ("http", "https"):
        raise InvalidOption("it is the address of the server's monitoring, as in http://127.0.0.1:8222")
    return text.rstrip("/")


def _parse_subject(text: str) -> str:
    """Check that ``text`` is one word of a subject, or several with dots between them."""
    if not all(re.fullmatch(r"[^\s*>.]+", word) for word in text.split(".")):
        raise InvalidOption("it is a word, or several with dots between them, without wildcards")
    return text


class NatsConnection:
    """One connection. ``lost`` is why it can no longer be used; None while it can."""

    def __init__(self, endpoint: NatsEndpoint) -> None:
        self.endpoint = endpoint
        self.client: Any = None
        self.lost: Exception | None = None
        self.on_lost: Callable[[], None] | None = None
        self._inbox = ""
        self._last_request = 0
        self._replies: dict[str, asyncio.Future[Any]] = {}  # by the token of the request

    @classmethod
    async def open(cls, endpoint: NatsEndpoint, name: str) -> NatsConnection:
        """Connect and log in. Raises `BrokerUnavailable`; `ConfigurationError` where trying again would not help."""
        connection = cls(endpoint)
        try:
            await connection.connect(name)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def connect(self, name: str) -> None:
        """Connect to one node after another until one answers, and subscribe to the inbox for replies."""
        endpoint, nats = self.endpoint, load_driver()
        failure: Exception | None = None
        for node in random.sample(endpoint.nodes, len(endpoint.nodes)):
            self.client = nats.aio.client.Client()  # a new one, since a failed client keeps trying its first server
            try:
                async with asyncio.timeout(endpoint.timeout):
                    await self.client.connect(
                        f"nats://{node}",
                        name=name,
                        allow_reconnect=False,
                        connect_timeout=endpoint.timeout,
                        ping_interval=PING_INTERVAL_S,
                        error_cb=self._handle_error,
                        closed_cb=self._handle_close,
                        tls=endpoint.tls,
                        inbox_prefix=endpoint.inbox_prefix,
                        **endpoint.login_options(lambda: self.client._server_info),
                    )
                if endpoint.tls is not None and not self.client._server_info.get("tls_required"):
                    raise tls_failed(endpoint.shown, "the server does not ask for TLS")
                break
            except (OSError, TimeoutError, nats.errors.Error) as error:
                if refusal := tls_refusal(error, endpoint.shown):
                    raise refusal from error
                text = str(error).lower()
                if "authorization" in text or "authentication" in text:
                    raise ConfigurationError(
                        f"{endpoint.shown} refused the user, the password or the token; correct them"
                    ) from error
                failure = error
        else:
            why = show(failure) or type(failure).__name__
            raise BrokerUnavailable(f"cannot connect to {endpoint.shown}: {why}") from failure
        self._inbox = self.client.new_inbox()
        await self.subscribe(f"{self._inbox}.*", self._handle_reply)

    @property
    def server_version(self) -> tuple[int, ...]:
        """The first two numbers of the server's version."""
        parts = str(self.client._server_info.get("version", "")).split(".")
        return tuple(int(part) for part in parts[:2] if part.isdigit())

    async def _handle_error(self, error: Exception) -> None:
        """nats-py calls this with errors that belong to no call of ours."""
        if not self._inbox:
            raise error  # while connecting: else nats-py would try the same server again, for minutes
        if "permissions violation" in str(error).lower():
            # The refused request will never get a reply, and the error does not name it: so fail all of them.
            self._fail(ConfigurationError(f"{self.endpoint.shown} does not let this user do that: {show(error, 300)}"))

    async def _handle_close(self) -> None:
        self._fail(self._connection_broke())

    def _connection_broke(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the connection to {self.endpoint.shown} broke")

    def _fail(self, error: Exception) -> Exception:
        """End the connection with ``error``, unless it has ended before. Returns the error that ended it."""
        if self.lost is None:
            self.lost = error
            for future in self._replies.values():
                if not future.done():
                    future.set_exception(self.lost)
                    future.exception()  # mark it as retrieved: its caller may have been cancelled
            if self.on_lost is not None:
                self.on_lost()
        return self.lost

    async def subscribe(self, subject: str, callback: Callable[[Any], Awaitable[None]]) -> Any:
        return await self._translate_errors(self.client.subscribe(subject, cb=callback))

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        await self._translate_errors(self.client.publish(subject, payload, reply=reply, headers=headers))

    async def request(
        self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[Any]:
        """Send a request. Returns a future of the reply; await it through `gather_replies`, which has a timeout."""
        if self.lost is not None:
            raise self.lost
        self._last_request += 1
        token = f"{self._last_request:x}"
        future = self._replies[token] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: self._replies.pop(token, None))
        try:
            await self.publish(subject, payload, f"{self._inbox}.{token}", headers)
        except BaseException:
            future.cancel()
            raise
        return future

    async def gather_replies(self, *futures: asyncio.Future[Any]) -> list[Any]:
        """Wait for all replies, and return them in order. `BrokerUnavailable` where one is late."""
        try:
            async with asyncio.timeout(self.endpoint.timeout):
                return [await future for future in futures]
        except TimeoutError:
            # The connection stays open: where JetStream itself is the cause, a new one would not help.
            raise self._timeout_error() from None
        finally:
            for future in futures:
                future.cancel()

    def _timeout_error(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self.endpoint.shown} did not answer within {self.endpoint.timeout:g} s")

    async def _handle_reply(self, message: Any) -> None:
        future = self._replies.get(message.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(message)

    async def call_jetstream(self, path: str, body: Any = None) -> dict[str, Any]:
        """Call JetStream's API. `JetStreamRefusal` where it replies with an error."""
        request = await self.request(
            f"{self.endpoint.jetstream_api}.{path}", b"" if body is None else msgspec.json.encode(body)
        )
        (message,) = await self.gather_replies(request)
        if read_status(message) == 503:
            raise JetStreamRefusal(
                f"{self.endpoint.shown} has no JetStream; start the server with -js, or enable it for this account",
                503,
            )
        reply: dict[str, Any] = msgspec.json.decode(message.data)
        if "error" in reply:
            raise self.translate_error(reply["error"])
        return reply

    def translate_error(self, error: Mapping[str, Any]) -> Exception:
        """Return our error for the error in a reply of JetStream."""
        status = int(error.get("code", 0))
        text = f"{self.endpoint.shown} refused: {show(error.get('description', ''), 300)}"
        if status >= 500:  # no leader, or no resources: that may pass
            return BrokerUnavailable(text)
        return JetStreamRefusal(text, status, int(error.get("err_code", 0)))

    async def flush(self) -> None:
        """Wait until the server has read all that was sent."""
        await self._translate_errors(self.client.flush(self.endpoint.timeout))

    async def _translate_errors(self, work: Awaitable[Any]) -> Any:
        errors = load_driver().errors
        try:
            return await work
        except errors.TimeoutError:
            raise self._timeout_error() from None
        except (errors.ConnectionClosedError, errors.StaleConnectionError, OSError) as error:
            raise self._fail(self._connection_broke()) from error

    async def close(self) -> None:
        is_connected = bool(self._inbox)
        try:
            # After TLS has failed, nats-py waits for the end of a connection that does not end.
            async with asyncio.timeout(self.endpoint.timeout if is_connected else FAILED_CLOSE_TIMEOUT_S):
                await self.client.close()
        except (OSError, TimeoutError, load_driver().errors.Error):
            pass
        self._fail(BrokerUnavailable(f"the connection to {self.endpoint.shown} is closed"))


def read_status(message: Any) -> int:
    """Read the status that the server has sent in place of a message; 0 where this is a message."""
    status = (message.headers or {}).get("Status", "") if not message.data else ""
    return int(status) if status.isdigit() else 0

"""Addresses, greetings, error replies and sockets of Redis, against a server that a test plays."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from effectonce.backends.redis import connecting
from effectonce.backends.redis import socket as socket_module
from effectonce.backends.redis.client_connection import RedisClientConnection, _make_tls_context, read_endpoint
from effectonce.backends.redis.endpoint import Node, RedisEndpoint, parse_endpoint, refuse_eviction
from effectonce.backends.redis.errors import (
    UNAVAILABLE_CODES,
    BrokerConnectionLost,
    MissingGroup,
    RedisBrokerErrors,
    RedisErrors,
    ReplyError,
)
from effectonce.backends.redis.socket import AsyncRedisSocket, SyncRedisSocket
from effectonce.contracts import ConnectionLost
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    BrokerUnavailable,
    ConfigurationError,
    CorruptRecord,
    InvalidOption,
    StoreUnavailable,
    SyncAsyncMismatch,
    UnsafeStore,
)
from effectonce.values.urls import Address
from tests.harness import servers
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy


def endpoint(url: str) -> RedisEndpoint:
    return parse_endpoint(Address(url))


# -- addresses


def test_a_url_says_where_the_server_is_and_who_asks() -> None:
    bare = endpoint("redis://")
    assert (bare.host, bare.port, bare.db, bare.path, bare.tls) == ("localhost", 6379, 0, None, None)
    assert (bare.user, bare.password, bare.timeout, bare.connect_timeout) == (None, None, 5.0, 5.0)
    full = endpoint("rediss://shop:s%2Fcret@h:7000/3?timeout=2s&connect_timeout=1s")
    assert (full.host, full.port, full.db, full.tls is not None) == ("h", 7000, 3, True)
    assert (full.user, full.password, full.timeout, full.connect_timeout) == ("shop", "s/cret", 2.0, 1.0)
    unix = endpoint("redis+unix:///run/redis.sock?db=2")
    assert (unix.path, unix.db) == ("/run/redis.sock", 2)
    assert endpoint("redis+cluster://h?tls=yes").tls is not None
    assert endpoint("redis+cluster://h").tls is None


@pytest.mark.parametrize("url", ["redis://h/x", "redis://h/-1", "redis://h/%D9%A3", "redis+unix:///s?db=x"])
def test_a_path_is_the_number_of_a_database(url: str) -> None:
    with pytest.raises(InvalidOption, match="number of a database"):
        endpoint(url)


def test_an_endpoint_is_shown_without_its_password() -> None:
    assert RedisEndpoint(host="h", password="canary").shown == "redis://h:6379/0"
    assert RedisEndpoint(path="/s", db=2).shown == "redis:///s/2"
    node = RedisEndpoint(shown="cluster").with_address("i", 7)
    assert (node.host, node.port, node.shown) == ("i", 7, "cluster (node i:7)")


# -- the greeting

ASKED = [("CLIENT", "SETNAME", "effectonce"), ("CONFIG", "GET", "maxmemory-policy"), ("INFO", "memory")]


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, []),
        ({"db": 3}, [("SELECT", "3")]),
        ({"password": "p"}, [("AUTH", "p")]),
        ({"password": ""}, [("AUTH", "")]),
        ({"user": "u", "password": "p", "db": 3}, [("AUTH", "u", "p"), ("SELECT", "3")]),
        ({"user": "u"}, []),
        ({"provider": lambda: ("u", "p"), "password": "other"}, [("AUTH", "u", "p")]),
        ({"provider": lambda: ("", "p")}, [("AUTH", "p")]),
    ],
)
def test_a_connection_begins_with_login_and_database(options: dict[str, Any], first: list[tuple[str, ...]]) -> None:
    known = RedisEndpoint(**options)
    assert known.greeting_commands() == [*first, *ASKED]
    assert known.greeting_count == len(known.greeting_commands())


def test_a_provider_that_fails_is_named() -> None:
    def fail() -> tuple[str]:
        raise KeyError("canary")

    with pytest.raises(StoreUnavailable, match=r"failed \(KeyError\)"):
        RedisEndpoint(provider=fail).greeting_commands()


NAMED, POLICY, MEMORY = b"OK", [b"maxmemory-policy", b"noeviction"], b"maxmemory_policy:noeviction"


@pytest.mark.parametrize(
    ("replies", "kind", "said"),
    [
        ([b"OK", b"OK", ReplyError("ERR no such command"), POLICY, MEMORY], None, ""),
        ([b"OK", b"OK", NAMED, ReplyError("NOPERM config"), MEMORY], None, ""),
        ([ReplyError("WRONGPASS canary"), b"OK", NAMED, POLICY, MEMORY], ConfigurationError, "user or the password"),
        ([ReplyError("LOADING data"), b"OK", NAMED, POLICY, MEMORY], StoreUnavailable, "is loading"),
        ([ReplyError("NOPERM auth"), b"OK", NAMED, POLICY, MEMORY], ConfigurationError, "ACL SETUSER"),
        ([b"OK", ReplyError("ERR index"), NAMED, POLICY, MEMORY], ConfigurationError, "has no database 3"),
        ([b"OK", ReplyError("NOAUTH x"), NAMED, POLICY, MEMORY], ConfigurationError, "asks for a password"),
        ([b"OK", b"OK", NAMED, [b"maxmemory-policy", b"allkeys-lru"], MEMORY], UnsafeStore, "allkeys-lru"),
        ([b"OK", b"OK", NAMED, ReplyError("x"), b"policy:volatile-ttl"], UnsafeStore, "volatile-ttl"),
    ],
)
def test_a_greeting_that_is_refused_says_why(replies: list[Any], kind: type[Exception] | None, said: str) -> None:
    known = RedisEndpoint(db=3, password="p")
    if kind is None:
        known.check_greeting(replies)
        return
    with pytest.raises(kind, match=said) as caught:
        known.check_greeting(replies)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "is_known"), [({"policy": "noeviction"}, True), (b"", False), (ReplyError("allkeys-lru"), False)]
)
def test_a_policy_is_found_in_a_reply_of_any_form(reply: Any, is_known: bool) -> None:
    assert refuse_eviction(reply, RedisErrors("r")) is is_known


# -- error replies


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        *((f"{code} x", StoreUnavailable, why) for code, why in UNAVAILABLE_CODES.items()),
        ("MOVED 1 h:1", ConfigurationError, "redis+cluster://"),
        ("ASK 1 h:1", ConfigurationError, "redis+cluster://"),
        ("NOAUTH x", ConfigurationError, "asks for a password"),
        ("WRONGPASS x", ConfigurationError, "percent-encoded"),
        ("READONLY x", ConnectionLost, "the primary"),
        ("NOPERM x", ConfigurationError, "ACL SETUSER"),
        ("WRONGTYPE x", CorruptRecord, "HGETALL"),
        ("CORRUPT x", CorruptRecord, "HGETALL"),
        ("ERR unknown command 'HSETEX'", ConfigurationError, "Redis >= 6"),
        ("ERR odd", StoreUnavailable, "ERR odd"),
    ],
)
def test_an_error_reply_says_what_to_do(text: str, kind: type[Exception], said: str) -> None:
    ours = RedisErrors("r").translate(ReplyError(text))
    assert type(ours) is kind
    assert said in str(ours)
    assert isinstance(ours.__cause__, ReplyError)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("NOGROUP no such group", MissingGroup),
        ("ERR no such key", MissingGroup),
        ("OOM x", BrokerUnavailable),
        ("READONLY x", BrokerConnectionLost),
        ("WRONGTYPE x", ConfigurationError),
    ],
)
def test_of_a_broker_they_are_the_errors_of_a_broker(text: str, kind: type[Exception]) -> None:
    assert type(RedisBrokerErrors("r").translate(ReplyError(text))) is kind


def test_a_connection_that_cannot_be_made_says_why() -> None:
    errors = RedisErrors("r")
    assert "within 3 s" in str(errors.connect_error(TimeoutError(), 3.0))
    assert "refused" in str(errors.connect_error(ConnectionRefusedError("refused"), 3.0))
    assert "OSError" in str(errors.connect_error(OSError(), 3.0))
    assert "closed by the server" in str(errors.broken_connection_error(None))
    assert "reset" in str(errors.broken_connection_error(OSError("reset")))


# -- the caller's client


class NoScriptError(Exception):
    """As redis-py's, which cuts off the code."""


class ResponseError(Exception):
    """As redis-py's."""


class ConnectionError_(Exception):
    """As redis-py's."""


ConnectionError_.__name__ = "ConnectionError"
REDIS_ERROR: Any = type("RedisError", (Exception,), {})
REDIS_TIMEOUT: Any = type("TimeoutError", (Exception,), {})


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (NoScriptError("No matching script"), ReplyError, "NOSCRIPT No matching script"),
        (NoScriptError("NOSCRIPT No matching script"), ReplyError, "NOSCRIPT No matching script"),
        (ResponseError("WRONGTYPE x"), ReplyError, "WRONGTYPE x"),
        (TimeoutError("late"), StoreUnavailable, "did not answer"),
        (REDIS_TIMEOUT("late"), StoreUnavailable, "did not answer"),
        (ConnectionResetError("reset"), ConnectionLost, "broke"),
        (ConnectionError_("reset"), ConnectionLost, "broke"),
        (REDIS_ERROR("odd"), StoreUnavailable, "the client's settings"),
        (KeyError("bug"), KeyError, "bug"),
    ],
)
def test_an_error_of_the_callers_client_is_ours(error: Exception, kind: type[Exception], text: str) -> None:
    class Client:
        def execute_command(self, *words: Any) -> Any:
            raise error

    with pytest.raises(kind) as caught:
        run_sync(RedisClientConnection(Client(), "r").command("", "PING"))
    assert text in str(caught.value)


def test_errors_inside_of_a_reply_are_error_replies() -> None:
    class Client:
        def execute_command(self, *words: Any) -> Any:
            return [b"a", NoScriptError("gone")]

    first, second = run_sync(RedisClientConnection(Client(), "r").command("", "X"))
    assert (first, type(second), str(second)) == (b"a", ReplyError, "NOSCRIPT gone")


def test_the_endpoint_of_a_client_is_that_of_its_pool() -> None:
    redis = pytest.importorskip("redis")
    bare = read_endpoint(redis.Redis())
    assert (bare.host, bare.port, bare.db, bare.tls, bare.password) == ("localhost", 6379, 0, None, None)
    assert bare.provider is None
    client = redis.Redis(host="h", port=7, db=3, username="u", password="p", ssl=True, socket_timeout=2)
    full = read_endpoint(client)
    assert (full.host, full.port, full.db, full.user, full.password) == ("h", 7, 3, "u", "p")
    assert (full.timeout, full.tls is not None) == (2.0, True)
    assert read_endpoint(redis.Redis(unix_socket_path="/s")).path == "/s"
    with pytest.raises(SyncAsyncMismatch):
        read_endpoint(object())


@pytest.mark.parametrize(
    ("options", "checks_name", "checks_certificate"),
    [
        ({}, True, True),
        ({"ssl_cert_reqs": "none"}, False, False),
        ({"ssl_cert_reqs": "required", "ssl_check_hostname": False}, False, True),
        ({"ssl_cert_reqs": "required", "ssl_check_hostname": True}, True, True),
    ],
)
def test_tls_checks_what_the_client_checks(options: Any, checks_name: bool, checks_certificate: bool) -> None:
    context = _make_tls_context(options)
    assert (context.check_hostname, bool(context.verify_mode)) == (checks_name, checks_certificate)


# -- sockets

GREETING = b"+OK\r\n*2\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n$0\r\n\r\n"


class Server:
    """Accepts connections, greets, and then does what a test says with each."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted: list[socket.socket] = []
        self.serve: Callable[[socket.socket], None] = lambda connection: None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted.append(connection)
            connection.recv(65_536)
            connection.sendall(GREETING)
            self.serve(connection)

    def close(self) -> None:
        self._listener.close()
        for connection in self.accepted:
            connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def endpoint_of(server: Server, timeout: float = 5.0) -> RedisEndpoint:
    return RedisEndpoint(host="127.0.0.1", port=server.port, timeout=timeout)


@pytest.fixture(params=[SyncRedisSocket, AsyncRedisSocket], ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def run(kind: Any, work: Any) -> Any:
    return run_sync(work) if kind is SyncRedisSocket else asyncio.run(work)


def test_replies_come_in_order_and_those_that_nobody_asked_for_wait(server: Server, kind: Any) -> None:
    server.serve = lambda connection: connection.sendall(b"+1\r\n+2\r\n+3\r\n")

    async def work() -> list[Any]:
        sock = kind(endpoint_of(server))
        await sock.send(b"x")
        replies = [await sock.receive(2), await sock.receive(1)]
        sock.drop()
        return replies

    assert run(kind, work()) == [[b"1", b"2"], [b"3"]]


def test_a_reply_in_pieces_is_one_reply(server: Server, kind: Any) -> None:
    def serve(connection: socket.socket) -> None:
        for part in (b"$4\r\n", b"ab", b"cd\r\n"):
            connection.recv(1)
            connection.sendall(part)

    server.serve = serve

    async def work() -> Any:
        sock = kind(endpoint_of(server))
        await sock.send(b"xyz")
        reply = await sock.receive(1)
        sock.drop()
        return reply

    assert run(kind, work()) == [b"abcd"]


def test_f36_a_server_that_does_not_answer_is_unavailable_and_the_next_call_connects_again(
    server: Server, kind: Any
) -> None:
    async def work() -> None:
        sock = kind(endpoint_of(server, timeout=0.3))
        for _ in range(2):
            await sock.send(b"x")
            with pytest.raises(StoreUnavailable, match=r"within 0\.3 s"):
                await sock.receive(1)
        sock.drop()

    run(kind, work())
    assert len(server.accepted) == 2


def test_a_wait_for_any_number_of_messages_may_end_without_one(server: Server, kind: Any) -> None:
    async def work() -> Any:
        sock = kind(endpoint_of(server))
        await sock.send(b"x")
        messages = await sock.receive(None, 0.01)
        sock.drop()
        return messages

    assert run(kind, work()) == []


def test_a_connection_that_the_server_closes_is_lost(server: Server, kind: Any) -> None:
    server.serve = lambda connection: connection.close()

    async def work() -> None:
        sock = kind(endpoint_of(server))

        async def ask() -> None:
            await sock.send(b"x")
            await sock.receive(1)

        with pytest.raises(ConnectionLost, match="broke"):
            await ask()
        with pytest.raises(ConnectionLost, match="closed by the server"):
            await sock.receive(1)

    run(kind, work())


def test_what_is_not_redis_is_unavailable(kind: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(65_536)

        threading.Thread(target=serve, daemon=True).start()
        known = RedisEndpoint(host="127.0.0.1", port=listener.getsockname()[1])
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            run(kind, kind(known).send(b"x"))


def test_f36_a_send_that_the_server_does_not_read_is_unavailable(server: Server) -> None:
    sock = SyncRedisSocket(endpoint_of(server, timeout=0.05))
    with pytest.raises(StoreUnavailable, match="did not answer"):
        run_sync(sock.send(bytes(64 << 20)))
    assert sock._socket is None


def test_a_send_on_a_broken_connection_is_a_lost_connection(server: Server) -> None:
    sock = SyncRedisSocket(endpoint_of(server))
    run_sync(sock.send(b"x"))
    assert sock._socket is not None
    sock._awaits_reply = False
    sock._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionLost, match="broke"):
        run_sync(sock.send(b"x"))


def test_f16_a_call_that_was_interrupted_leaves_no_reply_to_the_next(server: Server) -> None:
    sock = SyncRedisSocket(endpoint_of(server))
    for _ in range(2):  # the reply of the first is never read
        run_sync(sock.send(b"x"))
    assert len(server.accepted) == 2
    sock.drop()


def test_small_packets_are_sent_at_once_and_a_dead_server_is_noticed(server: Server) -> None:
    sock = SyncRedisSocket(endpoint_of(server))
    run_sync(sock.send(b"x"))
    assert sock._socket is not None
    assert sock._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    sock.drop()


def test_an_idle_connection_is_kept_alive_by_the_system(server: Server) -> None:
    sock = SyncRedisSocket(endpoint_of(server))
    run_sync(sock.send(b"x"))
    assert sock._socket is not None
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert sock._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == connecting.KEEPALIVE_IDLE_S
    sock.drop()


def test_f36_a_connection_that_was_silently_dropped_while_idle_costs_a_ping_and_no_error(
    redis_url: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_module, "MAX_UNTRIED_IDLE_S", 0.0)
    monkeypatch.setattr(socket_module, "PING_TIMEOUT_S", 0.1)
    ping = b"*1\r\n$4\r\nPING\r\n"

    async def work(proxy: FaultProxy) -> list[Any]:
        sock = kind(RedisEndpoint(host="127.0.0.1", port=proxy.port, timeout=20.0))
        replies = []
        for is_dropped in (False, False, True):
            if is_dropped:
                proxy.silence()
            await sock.send(ping)
            replies += await sock.receive(1)
        sock.drop()
        return replies

    with FaultProxy(Address(redis_url).port or 6379) as proxy:
        begun = time.monotonic()
        assert run(kind, work(proxy)) == [b"PONG"] * 3
        assert time.monotonic() - begun < 20.0


def test_a_connection_in_use_is_not_tried_first(server: Server, kind: Any) -> None:
    received: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        for _ in range(2):
            received.append(connection.recv(100))
            connection.sendall(b"+1\r\n")

    server.serve = serve

    async def work() -> None:
        sock = kind(endpoint_of(server))
        for _ in range(2):
            await sock.send(b"x")
            await sock.receive(1)
        sock.drop()

    run(kind, work())
    assert received == [b"x", b"x"]


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_an_ipv6_address_is_written_in_brackets(scheme: str) -> None:
    known = endpoint(f"{scheme}://[::1]:7000")
    assert known.cluster == [Node("::1", 7000)] if known.cluster else (known.host, known.port) == ("::1", 7000)


def test_a_server_on_ipv6_is_reached(kind: Any) -> None:
    with servers.redis("--bind", "::1", "127.0.0.1") as server:
        known = parse_endpoint(Address(f"redis://[::1]:{server.port}/0"))

        async def work() -> Any:
            sock = kind(known)
            await sock.send(b"*1\r\n$4\r\nPING\r\n")
            reply = await sock.receive(1)
            sock.drop()
            return reply

        assert run(kind, work()) == [b"PONG"]


# -- hosts with several addresses


def addresses_of(monkeypatch: pytest.MonkeyPatch, *places: tuple[str, int]) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
            for host, port in places
        ]

    monkeypatch.setattr(connecting.socket, "getaddrinfo", resolve)


@pytest.fixture
def listening() -> Iterator[tuple[str, int]]:
    """The address of a server that answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


def test_of_several_addresses_the_first_that_answers_is_used(
    listening: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        place = full.getsockname()
        fillers = [socket.socket() for _ in range(3)]  # what comes next gets no answer
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(place)
        addresses_of(monkeypatch, place, listening)
        begun = time.monotonic()
        with connecting.connect("h", 1, 30.0) as sock:
            assert sock.getpeername() == listening
            assert sock.gettimeout() == 30.0
        assert connecting.HAPPY_EYEBALLS_DELAY_S <= time.monotonic() - begun < 30.0
        for filler in fillers:
            filler.close()


def test_an_address_that_refuses_is_passed_over_at_once(
    listening: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "HAPPY_EYEBALLS_DELAY_S", 60.0)
    addresses_of(monkeypatch, ("127.0.0.1", free_port()), ("::1", free_port()), listening)
    with connecting.connect("h", 1, 30.0) as sock:
        assert sock.getpeername() == listening


def test_where_no_address_answers_the_last_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses_of(monkeypatch, ("127.0.0.1", free_port()), ("127.0.0.1", free_port()))
    with pytest.raises(ConnectionRefusedError):
        connecting.connect("h", 1, 30.0)


def test_f36_addresses_that_never_answer_end_with_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        place = full.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(place)
        addresses_of(monkeypatch, place, place)
        with pytest.raises(TimeoutError):
            connecting.connect("h", 1, 0.4)
        for filler in fillers:
            filler.close()


def test_families_take_turns_and_the_preferred_one_begins() -> None:
    v6, v4 = socket.AF_INET6, socket.AF_INET
    mixed: list[Any] = [(v6, 1), (v6, 2), (v6, 3), (v4, 4)]
    assert connecting._interleave_families(mixed) == [(v6, 1), (v4, 4), (v6, 2), (v6, 3)]

"""Redis, Valkey and Redis Cluster: the contract on each, and what is Redis's own."""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.redis import port as redis_port
from effectonce.backends.redis import socket as redis_socket
from effectonce.backends.redis.cluster import slot_of
from effectonce.backends.redis.connection import send_command
from effectonce.backends.redis.endpoint import RedisEndpoint
from effectonce.backends.redis.record_format import Layout
from effectonce.backends.redis.socket import AsyncRedisSocket, SyncRedisSocket
from effectonce.backends.redis.store import RedisClientStoreBackend, RedisStoreBackend
from effectonce.contracts import Backend, ConnectionLost, Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InvalidOption,
    SchemaMismatch,
    StoreUnavailable,
    SyncAsyncMismatch,
    UnsafeStore,
)
from effectonce.record import (
    EXHAUSTED_ERROR,
    Answer,
    Claim,
    Query,
    Record,
    Remember,
    Renewal,
    Reply,
    SettledState,
    Settlement,
)
from effectonce.testing.suites import store_suite
from effectonce.values.urls import Address
from tests.conftest import skip_or_fail
from tests.harness import servers
from tests.harness.process import ServerFailed, free_port
from tests.harness.proxy import FaultProxy
from tests.harness.redis_cluster import RedisCluster, redis_cluster
from tests.harness.waiting import until

SECOND = 1_000_000
HOUR = 3600 * SECOND
SECRET = "c4nary-pa55word"


def backend_at(url: str, **options: str) -> RedisStoreBackend:
    extra = "&".join(f"{name}={value}" for name, value in options.items())
    return RedisStoreBackend(Address(f"{url}{'&' if '?' in url else '?'}{extra}" if extra else url))


def a_claim(key: str = "k", owner: bytes | None = None, **options: Any) -> Claim:
    return Claim("scope", key, owner or os.urandom(16), options.pop("lease", 60 * SECOND), HOUR, **options)


def one(port: Port, op: Any) -> Reply:
    (reply,) = run_sync(port.run((op,)))
    return reply


def answered(port: Port, claim: Claim) -> Answer:
    reply = one(port, claim)
    assert isinstance(reply, Answer), reply
    return reply


def done(claim: Claim, answer: Reply, result: bytes | None = b"1{}") -> Settlement:
    assert isinstance(answer, Answer), answer
    return Settlement(claim.scope, claim.key, claim.owner, answer.token, "done", HOUR, result)


# The contract, on every server and through every client


def through_client(url: str, *, cluster: bool = False, **options: Any) -> Any:
    import redis

    return (redis.RedisCluster if cluster else redis.Redis).from_url(url.replace("+cluster", ""), **options)


@pytest.mark.quick_once
class TestOnRedis:
    @pytest.fixture
    def backend(self, redis_url: str, unique_name: str) -> Backend:
        return backend_at(redis_url, namespace=unique_name)


@pytest.mark.long
class TestOnValkey:
    @pytest.fixture
    def backend(self, valkey_url: str, unique_name: str) -> Backend:
        return backend_at(valkey_url, namespace=unique_name)


@pytest.mark.quick_once
class TestOnACluster:
    @pytest.fixture
    def backend(self, redis_cluster_url: str, unique_name: str) -> Backend:
        return backend_at(redis_cluster_url, namespace=unique_name)


@pytest.mark.long
class TestThroughASyncClient:
    """Code of its own kind through the client, the other kind by connections derived from it."""

    @pytest.fixture
    def backend(self, redis_url: str, unique_name: str) -> Iterator[Backend]:
        with through_client(redis_url, decode_responses=True) as client:
            yield RedisClientStoreBackend(client, unique_name)


for _place in (TestOnRedis, TestOnValkey, TestOnACluster, TestThroughASyncClient):
    for _name, _case in vars(store_suite()).items():
        if _name.startswith("test_"):
            setattr(_place, _name, _case)


# Clients that the caller already has


async def a_life(port: Port, key: str) -> list[Any]:
    """Claim, settle, replay, read, list, forget, sweep: what each step answered."""
    claim = a_claim(key)
    (first,) = await port.run([claim])
    assert isinstance(first, Answer)
    steps: list[Any] = [first.kind, *await port.run([done(claim, first, b"\xff")])]
    (again,) = await port.run([a_claim(key)])
    assert isinstance(again, Answer)
    record = await port.get("scope", key)
    listed = await port.list(Query(scope="scope"))
    counts = (await port.stats()).counts
    steps += [again.kind, again.result, record and record.state, len(listed.records), counts["done"]]
    steps += [await port.forget("scope", key, HOUR), (await port.sweep(10)).lapsed, await port.now() > 0]
    return steps


A_LIFE = ["claimed", True, "done", b"\xff", "done", 1, 1, True, 0, True]


@contextlib.asynccontextmanager
async def async_client(url: str, *, cluster: bool = False, **options: Any) -> AsyncIterator[Any]:
    import redis.asyncio

    kind = redis.asyncio.RedisCluster if cluster else redis.asyncio.Redis
    client = kind.from_url(url.replace("+cluster", ""), **options)
    try:
        yield client
    finally:
        await client.aclose()


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}], ids=str)
async def test_an_async_client_serves_sync_and_async_code(
    redis_url: str, unique_name: str, options: dict[str, Any]
) -> None:
    async with async_client(redis_url, **options) as client:
        backend = RedisClientStoreBackend(client, unique_name)
        assert await a_life(backend.async_port(), "async") == A_LIFE
        derived = backend.sync_port()
        with pytest.raises(SyncAsyncMismatch):  # it would suspend
            run_sync(backend.async_port().now())
        assert run_sync(derived.get("scope", "async")) is not None
        run_sync(derived.close())
        assert await client.ping()  # still its owner's


async def test_an_async_cluster_client_serves_sync_and_async_code(redis_cluster_url: str, unique_name: str) -> None:
    async with async_client(redis_cluster_url, cluster=True) as client:
        backend = RedisClientStoreBackend(client, unique_name)
        assert await a_life(backend.async_port(), "async") == A_LIFE
        derived = backend.sync_port()
        assert run_sync(derived.get("scope", "async")) is not None
        run_sync(derived.close())


def test_a_sync_cluster_client_serves_sync_and_async_code(redis_cluster_url: str, unique_name: str) -> None:
    client = through_client(redis_cluster_url, cluster=True)
    backend = RedisClientStoreBackend(client, unique_name)
    assert run_sync(a_life(backend.sync_port(), "sync")) == A_LIFE

    async def get_in_a_loop() -> Record | None:
        port = backend.async_port()
        try:
            return await port.get("scope", "sync")
        finally:
            await port.close()

    assert asyncio.run(get_in_a_loop()) is not None
    client.close()


def test_a_settlement_by_a_cluster_client_does_not_stand_behind_the_claims_of_others(
    redis_cluster_url: str, unique_name: str
) -> None:
    """Such a client sends one by one, where others send a batch: in one lane with claims it waited for each of them."""
    client = through_client(redis_cluster_url, cluster=True)
    execute, sent, ended = client.execute_command, threading.Event(), threading.Event()
    waited: list[bool] = []

    def slow(*words: Any, **options: Any) -> Any:
        if any(b"held up" in word for word in words if isinstance(word, bytes)) and not sent.is_set():
            sent.set()
            waited.append(ended.wait(10))
        return execute(*words, **options)

    client.execute_command = slow
    store = eo.Store(RedisClientStoreBackend(client, unique_name), sweep_every=None)

    @eo.once(store, scope="s", key="key")
    def charge(key: str) -> None:
        if key == "first":
            other.start()
            assert sent.wait(60)

    other = threading.Thread(target=charge, args=("held up",))
    charge("first")
    ended.set()
    other.join()
    assert waited == [True], "the settlement ended while the claim was on its way"
    store.close()
    client.close()


async def test_an_async_client_hears_of_settlements(redis_url: str, unique_name: str) -> None:
    async with async_client(redis_url) as client:
        backend = RedisClientStoreBackend(client, unique_name)
        listener, port = backend.async_port(), backend.async_port()
        assert await listener.changes(0.0) == []
        claim = a_claim("ключ:1")
        (answer,) = await port.run([claim])
        await port.run([a_claim("ключ:1", waiting=True)])
        await port.run([done(claim, answer)])
        assert await listener.changes(5.0) == [("scope", "ключ:1")]
        await listener.close()


def test_a_client_that_does_not_say_where_it_is_serves_one_kind_of_code() -> None:
    class Client:
        def execute_command(self, *words: object) -> None: ...

    with pytest.raises(SyncAsyncMismatch, match="make the store from a URL"):
        RedisClientStoreBackend(Client()).async_port()

    class AsyncClient:
        async def execute_command(self, *words: object) -> None: ...

    with pytest.raises(SyncAsyncMismatch, match="make the store from a URL"):  # there could be no heartbeat
        RedisClientStoreBackend(AsyncClient())
    with pytest.raises(InvalidOption, match="execute_command"):
        RedisClientStoreBackend(object())


async def test_every_connection_has_credentials_of_its_own(own_redis: servers.Redis, unique_name: str) -> None:
    """Tokens of a cloud are good for minutes: a connection that is opened later needs another."""
    import redis.asyncio
    from redis.credentials import CredentialProvider

    class Tokens(CredentialProvider):
        given = 0

        def get_credentials(self) -> tuple[str, str]:
            self.given += 1
            if self.given == 3:
                raise OSError("the token service is away for a moment")
            own_redis.execute("ACL", "SETUSER", "cloud", "on", "resetpass", f">token-{self.given}", "~*", "&*", "+@all")
            return "cloud", f"token-{self.given}"

    tokens = Tokens()
    client = redis.asyncio.Redis(port=own_redis.port, credential_provider=tokens)
    port = RedisClientStoreBackend(client, unique_name).sync_port()
    assert tokens.given == 0
    for number in (1, 2):
        assert await port.now() > 0
        assert tokens.given == number
        await port.close()
    with pytest.raises(StoreUnavailable, match=r"the credential provider of .* failed \(OSError\)"):
        await port.now()
    assert await port.now() > 0
    await port.close()
    await client.aclose()


@pytest.mark.parametrize("given", [("secret",), ("user", "secret"), (None, "secret"), ("default", "")])
def test_a_provider_gives_a_user_or_none(given: tuple[str, ...]) -> None:
    asked = RedisEndpoint(provider=lambda: given).greeting_commands()[0]
    assert asked == ("AUTH", *(word for word in given if word is not None))


# F29: eviction


@pytest.fixture(scope="module")
def own_redis() -> Iterator[servers.Redis]:
    """A server whose settings these tests may change."""
    with servers.redis() as server:
        yield server


@pytest.fixture
def configured(own_redis: servers.Redis) -> Iterator[Callable[..., Any]]:
    """``configured("name", "value")`` until the test ends."""
    before: dict[str, str] = {}

    def configure(name: str, value: str) -> None:
        before.setdefault(name, own_redis.execute("CONFIG", "GET", name)[name])
        own_redis.execute("CONFIG", "SET", name, value)

    yield configure
    for name, value in before.items():
        own_redis.execute("CONFIG", "SET", name, value)


POLICIES = ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random"]


@pytest.mark.parametrize("policy", [*POLICIES, "volatile-ttl"])
def test_f29_a_server_that_evicts_is_refused(
    own_redis: servers.Redis, configured: Callable[..., Any], unique_name: str, policy: str
) -> None:
    configured("maxmemory-policy", policy)
    port = backend_at(own_redis.url, namespace=unique_name).sync_port()
    with pytest.raises(UnsafeStore, match="CONFIG SET maxmemory-policy noeviction") as caught:
        run_sync(port.check())
    assert policy in str(caught.value)
    with pytest.raises(UnsafeStore):  # and by first use, without anyone asking for a check
        one(port, a_claim())
    configured("maxmemory-policy", "noeviction")
    assert answered(port, a_claim()).kind == "claimed"
    run_sync(port.close())


def test_f29_where_config_is_forbidden_info_tells_the_policy(
    own_redis: servers.Redis, configured: Callable[..., Any], unique_name: str
) -> None:
    own_redis.execute("ACL", "SETUSER", "managed", "on", f">{SECRET}", "~*", "&*", "+@all", "-config")
    url = own_redis.url.replace("://", f"://managed:{SECRET}@")
    port = backend_at(url, namespace=unique_name).sync_port()
    run_sync(port.check())
    configured("maxmemory-policy", "volatile-lru")
    with pytest.raises(UnsafeStore, match="volatile-lru"):
        run_sync(port.check())
    run_sync(port.close())


@pytest.mark.parametrize("allowed", [True, False], ids=["CONFIG", "only INFO"])
def test_f29_a_new_connection_asks_again(
    own_redis: servers.Redis, configured: Callable[..., Any], unique_name: str, allowed: bool
) -> None:
    """After a failover it may lead to another server than the one that was checked."""
    own_redis.execute(
        "ACL", "SETUSER", "again", "on", f">{SECRET}", "~*", "&*", "+@all", *(() if allowed else ("-config",))
    )
    backend = backend_at(own_redis.url.replace("://", f"://again:{SECRET}@"), namespace=unique_name)
    port = backend.sync_port()
    assert answered(port, a_claim("before")).kind == "claimed"
    configured("maxmemory-policy", "allkeys-lru")
    with pytest.raises(UnsafeStore, match="allkeys-lru"):
        one(backend.sync_port(), a_claim("on a second port"))
    own_redis.execute("CLIENT", "KILL", "TYPE", "normal")
    with pytest.raises(ConnectionLost):
        one(port, a_claim("broken"))
    with pytest.raises(UnsafeStore, match="allkeys-lru"):
        one(port, a_claim("connected again"))
    run_sync(port.close())


def test_f29_a_client_of_the_callers_is_asked_again_after_an_outage(unique_name: str) -> None:
    with servers.redis() as server, through_client(server.url) as client:
        port = RedisClientStoreBackend(client, unique_name).sync_port()
        assert answered(port, a_claim("before")).kind == "claimed"
        server.kill()
        with pytest.raises(StoreUnavailable):
            one(port, a_claim("down"))
        server.restart()
        server.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(UnsafeStore, match="allkeys-lru"):
            one(port, a_claim("up again"))


def test_a_full_server_fails_closed(own_redis: servers.Redis, configured: Callable[..., Any], unique_name: str) -> None:
    port = backend_at(own_redis.url, namespace=unique_name).sync_port()
    mine = a_claim("mine")
    answer = answered(port, mine)
    configured("maxmemory", "1")
    reply = one(port, a_claim("another"))
    assert isinstance(reply, StoreUnavailable)
    assert "out of memory" in str(reply)
    configured("maxmemory", "0")
    assert one(port, done(mine, answer)) is True
    run_sync(port.close())


# Connections


@pytest.fixture(scope="module")
def proxied(own_redis: servers.Redis) -> Iterator[FaultProxy]:
    with FaultProxy(own_redis.port) as proxy:
        yield proxy


@pytest.fixture
def proxy(proxied: FaultProxy) -> Iterator[FaultProxy]:
    yield proxied
    proxied.heal()


@pytest.fixture
def faulty(own_redis: servers.Redis, proxy: FaultProxy, unique_name: str) -> RedisStoreBackend:
    return backend_at(proxy.through(own_redis.url), namespace=unique_name, timeout="0.5", connect_timeout="0.5")


def test_f68_a_claim_and_a_settlement_are_recognised_when_their_replies_were_lost(
    faulty: RedisStoreBackend, proxy: FaultProxy
) -> None:
    port = faulty.sync_port()
    run_sync(port.check())
    claim = a_claim()
    proxy.drop_reply(to=b"EVALSHA")
    with pytest.raises(ConnectionLost):
        one(port, claim)
    again = answered(port, claim)
    assert (again.kind, again.attempts) == ("claimed", 1)
    assert answered(port, claim).token == again.token
    proxy.drop_reply(to=b"EVALSHA")
    with pytest.raises(ConnectionLost):
        one(port, done(claim, again))
    assert one(port, done(claim, again)) is True
    assert answered(port, a_claim()).result == b"1{}"
    run_sync(port.close())


@pytest.mark.parametrize("count", [0, 1, 9])
def test_half_a_reply_is_never_read_as_the_next_one(faulty: RedisStoreBackend, proxy: FaultProxy, count: int) -> None:
    port = faulty.sync_port()
    first = answered(port, a_claim("first"))
    proxy.cut_reply_after(count)
    with pytest.raises(ConnectionLost):
        one(port, a_claim("second"))
    third = answered(port, a_claim("third"))
    assert third.kind == "claimed"
    assert third.token > first.token
    run_sync(port.close())


async def test_a_cancelled_operation_leaves_no_reply_behind(faulty: RedisStoreBackend, proxy: FaultProxy) -> None:
    port = faulty.async_port()
    held = a_claim("held")
    await port.run([held])
    proxy.delay = 0.2
    task = asyncio.ensure_future(port.run([a_claim("held")]))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.delay = 0.0
    (answer,) = await port.run([a_claim("free to take")])
    assert isinstance(answer, Answer)
    assert answer.kind == "claimed"  # and not the late "in progress" of the cancelled one
    await port.close()


def test_f36_a_silent_server_ends_in_store_unavailable(faulty: RedisStoreBackend, proxy: FaultProxy) -> None:
    port = faulty.sync_port()
    run_sync(port.check())
    proxy.blackhole = True
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.5 s"):
        one(port, a_claim())
    with pytest.raises(StoreUnavailable):  # nor does a new connection hang
        one(port, a_claim())
    proxy.heal()
    assert answered(port, a_claim()).kind == "claimed"
    run_sync(port.close())


def test_f36_signals_do_not_stretch_the_timeout(faulty: RedisStoreBackend, proxy: FaultProxy) -> None:
    """A system call that a signal interrupts is made again (PEP 475), which must not start its timeout anew."""
    port = faulty.sync_port()
    run_sync(port.check())
    proxy.blackhole = True
    me, over = threading.get_ident(), threading.Event()

    def disturb() -> None:
        for _ in range(30):
            if over.wait(0.1):
                return
            signal.pthread_kill(me, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    thread = threading.Thread(target=disturb)
    thread.start()
    started = time.monotonic()
    try:
        with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.5 s"):
            one(port, a_claim())
        assert time.monotonic() - started < 3
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("what", [KeyboardInterrupt, GeneratorExit, SystemExit, asyncio.CancelledError])
async def test_what_ends_a_coroutine_is_not_a_lost_connection(
    own_redis: servers.Redis, what: type[BaseException]
) -> None:
    connection = AsyncRedisSocket(RedisEndpoint(host="127.0.0.1", port=own_redis.port))
    for waits in (lambda: connection.receive(1), lambda: connection.receive(None, 5.0)):
        await connection.send(b"*3\r\n$5\r\nBLPOP\r\n$6\r\nnobody\r\n$1\r\n5\r\n")
        waiting = waits()
        waiting.send(None)
        with pytest.raises(what):
            waiting.throw(what())
        assert connection._stream is None  # half a conversation is never reused


@pytest.mark.parametrize("at", [2, 3])
def test_f16_an_interruption_in_the_middle_of_a_reply_gives_no_call_the_reply_of_another(
    own_redis: servers.Redis, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Ctrl-C, or a time limit thrown into the thread, may come where no `try` is: whenever the clock is read."""
    connection = SyncRedisSocket(RedisEndpoint(host="127.0.0.1", port=own_redis.port))
    assert run_sync(send_command(connection, "ECHO", "first")) == b"first"
    reads = itertools.count(1)

    def monotonic() -> float:
        if next(reads) == at:
            raise KeyboardInterrupt
        return 0.0

    with monkeypatch.context() as patch:
        patch.setattr(redis_socket, "time", SimpleNamespace(monotonic=monotonic))
        with pytest.raises(KeyboardInterrupt):
            run_sync(send_command(connection, "ECHO", b"x" * 300_000))
    assert run_sync(send_command(connection, "ECHO", "mine")) == b"mine"
    connection.drop()


def test_a_reply_that_takes_several_reads_is_one_reply(own_redis: servers.Redis) -> None:
    connection = SyncRedisSocket(RedisEndpoint(host="127.0.0.1", port=own_redis.port))
    long = b"x" * 300_000
    texts = [long, b"short", long]
    assert [run_sync(send_command(connection, "ECHO", text)) for text in texts] == texts
    connection.drop()


async def test_f36_a_silent_server_ends_in_store_unavailable_async(
    faulty: RedisStoreBackend, proxy: FaultProxy
) -> None:
    port = faulty.async_port()
    await port.check()
    proxy.blackhole = True
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.5 s"):
        await port.run([a_claim()])
    with pytest.raises(StoreUnavailable):
        await port.run([a_claim()])
    proxy.heal()
    (answer,) = await port.run([a_claim()])
    assert isinstance(answer, Answer)
    await port.close()


def test_f36_an_address_without_a_server_is_store_unavailable() -> None:
    with servers.redis() as server:
        url = server.url
    port = backend_at(url).sync_port()
    with pytest.raises(StoreUnavailable, match="cannot connect") as caught:
        one(port, a_claim())
    assert not isinstance(caught.value, ConnectionLost)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_restart_between_operations_costs_one_lost_connection(unique_name: str, mode: str) -> None:
    with servers.redis("--appendonly", "yes", "--appendfsync", "always") as server:
        backend = backend_at(server.url, namespace=unique_name)
        port = backend.sync_port() if mode == "sync" else backend.async_port()

        async def story() -> None:
            claim = a_claim()
            (answer,) = await port.run([claim])
            await asyncio.to_thread(server.restart) if mode == "async" else server.restart()
            with pytest.raises(ConnectionLost):
                await port.run([done(claim, answer)])
            assert await port.run([done(claim, answer)]) == [True]  # NOSCRIPT on the new server, too
            await port.close()

        run_sync(story()) if mode == "sync" else asyncio.run(story())


def test_scripts_are_loaded_again_after_script_flush(own_redis: servers.Redis, unique_name: str) -> None:
    port = backend_at(own_redis.url, namespace=unique_name).sync_port()
    claim = a_claim()
    answer = answered(port, claim)
    own_redis.execute("SCRIPT", "FLUSH")
    assert one(port, done(claim, answer)) is True
    assert own_redis.execute("SCRIPT", "EXISTS", redis_port.RECORDS_SCRIPT.sha.decode()) == [True]
    run_sync(port.close())


def test_f35_a_replica_is_not_claimed_on(own_redis: servers.Redis, unique_name: str) -> None:
    with servers.redis("--replicaof", f"127.0.0.1 {own_redis.port}") as replica:
        primary = backend_at(own_redis.url, namespace=unique_name)
        run_sync(primary.sync_port().check())
        backend = backend_at(replica.url, namespace=unique_name)
        backend.verified = True  # a server that was fit, and became a replica in a failover
        port = backend.sync_port()
        with pytest.raises(ConnectionLost, match="claims need the primary"):
            one(port, a_claim())
        replica.execute("REPLICAOF", "NO", "ONE")
        assert answered(port, a_claim()).kind == "claimed"
        run_sync(port.close())


def test_a_unix_socket(unique_name: str, tmp_path: Path) -> None:
    with servers.redis("--unixsocket", str(tmp_path / "s")):
        backend = RedisStoreBackend(Address(f"redis+unix://{tmp_path}/s?db=1&namespace={unique_name}"))
        assert run_sync(a_life(backend.sync_port(), "k")) == A_LIFE


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    try:
        subprocess.run([*command.split(), *files], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed: apt-get install openssl")
    return folder


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_tls(tls_files: Path, unique_name: str, mode: str) -> None:
    cert, key = str(tls_files / "cert.pem"), str(tls_files / "key.pem")
    options = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
    tls_port = free_port()
    try:
        server = servers.redis("--tls-port", str(tls_port), *options)
    except ServerFailed as failed:
        if "TLS support" not in str(failed):
            raise
        skip_or_fail("the Valkey inside a package knows no TLS: apt-get install redis-server")
    with server:
        backend = backend_at(f"rediss://127.0.0.1:{tls_port}", namespace=unique_name, ca_file=cert)
        if mode == "sync":
            assert run_sync(a_life(backend.sync_port(), "k")) == A_LIFE
        else:
            assert asyncio.run(_closed_after(backend.async_port())) == A_LIFE
        with pytest.raises(ConfigurationError, match="add the authority that signed it as ca_file="):
            run_sync(backend_at(f"rediss://127.0.0.1:{tls_port}").sync_port().now())
        with pytest.raises(InvalidOption, match="ca_file of"):
            backend_at(f"rediss://127.0.0.1:{tls_port}", ca_file="/nowhere")


async def _closed_after(port: Port) -> list[Any]:
    try:
        return await a_life(port, "k")
    finally:
        await port.close()


# F66: secrets


def test_f66_no_password_in_any_error(own_redis: servers.Redis, unique_name: str) -> None:
    own_redis.execute("ACL", "SETUSER", "guarded", "on", ">another", "~*", "&*", "+@all")
    backend = backend_at(own_redis.url.replace("://", f"://guarded:{SECRET}@"), namespace=unique_name)
    assert SECRET not in repr(backend)

    async def refused(port: Port) -> str:
        with pytest.raises(ConfigurationError, match="refused the user or the password") as caught:
            await port.now()
        report = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        return "".join(report.format())

    assert SECRET not in run_sync(refused(backend.sync_port()))
    assert SECRET not in asyncio.run(refused(backend.async_port()))


def test_a_missing_password_says_where_to_write_it(
    own_redis: servers.Redis, configured: Callable[..., Any], unique_name: str
) -> None:
    own_redis.execute("ACL", "SETUSER", "default", "resetpass", f">{SECRET}")
    try:
        with pytest.raises(ConfigurationError, match="asks for a password"):
            run_sync(backend_at(own_redis.url, namespace=unique_name).sync_port().now())
        port = backend_at(own_redis.url.replace("://", f"://:{SECRET}@"), namespace=unique_name).sync_port()
        assert run_sync(port.now()) > 0
        run_sync(port.close())
    finally:
        import redis

        with redis.Redis(port=own_redis.port, password=SECRET) as client:
            client.execute_command("ACL", "SETUSER", "default", "nopass")


def test_a_user_without_the_rights_gets_the_rule_in_the_error(own_redis: servers.Redis, unique_name: str) -> None:
    rules = ("~eo:*", "+@all", "resetchannels")
    own_redis.execute("ACL", "SETUSER", "narrow", "on", f">{SECRET}", *rules)
    url = own_redis.url.replace("://", f"://narrow:{SECRET}@")
    with pytest.raises(ConfigurationError, match=r"ACL SETUSER .* &eo:"):
        run_sync(backend_at(url, namespace=unique_name).sync_port().check())


def test_the_rule_that_the_error_names_is_enough(own_redis: servers.Redis, unique_name: str) -> None:
    rules = "~eo:* &eo:* +@hash +@sortedset +@keyspace +@scripting +@pubsub +@connection +time +info +config|get"
    own_redis.execute("ACL", "SETUSER", "enough", "on", f">{SECRET}", *rules.split())
    url = own_redis.url.replace("://", f"://enough:{SECRET}@")
    port = backend_at(url, namespace=unique_name).sync_port()
    run_sync(port.check())
    assert run_sync(a_life(port, "k")) == A_LIFE
    run_sync(port.close())


# Records


@pytest.fixture
def new_redis() -> Iterator[servers.Redis]:
    """A server that nothing else has used: a past replica alone leaves a backlog of a megabyte."""
    with servers.redis() as server:
        yield server


@pytest.mark.parametrize(("state", "count", "alone"), [("done", 15_500, 224), ("claimed", 23_500, 256)])
def test_a_record_without_result_takes_at_most_320_bytes(
    new_redis: servers.Redis, state: str, count: int, alone: int
) -> None:
    """Everything counted: done ones just after Redis has doubled its table (at 16,384), when each key costs most;
    claims, which have a lease besides, with the table three quarters full."""
    import redis

    port = backend_at(new_redis.url).sync_port()
    run_sync(port.check())

    def fill(first: int, count: int) -> None:
        for at in range(first, first + count, 100):
            names = [f"pay_{n:032d}" for n in range(at, at + 100)]
            batch = [Claim("charge-card", name, os.urandom(16), 60 * SECOND, 15 * 24 * HOUR) for name in names]
            answers = run_sync(port.run(batch))
            if state == "done":
                run_sync(port.run([done(claim, answer, None) for claim, answer in zip(batch, answers, strict=True)]))

    with redis.Redis(port=new_redis.port) as client:
        fill(0, 1_000)  # the buffers and scripts that every server has
        before = client.info("memory")["used_memory"]
        fill(1_000, count)
        each = (client.info("memory")["used_memory"] - before) / count
        name = Layout("eo").key("charge-card", f"pay_{7:032d}")
        assert each <= 320, f"{each} bytes for each, everything counted"
        assert client.memory_usage(name) <= alone
        assert client.object("encoding", name) in (b"listpack", b"ziplist")
        assert client.hget(name, "K") == f"pay_{7:032d}".encode()  # readable, beside the digest
    run_sync(port.close())


@pytest.mark.parametrize("way", ["claimed again from free", "said by its owner", "found by a claim", "swept"])
def test_f26_redis_itself_never_removes_what_may_be_in_doubt(redis_url: str, unique_name: str, way: str) -> None:
    """A TTL left over from before would delete the record in silence, long after the tests have gone home."""
    import redis

    port = backend_at(redis_url, namespace=unique_name).sync_port()
    first = a_claim(
        lease=1 if way in ("found by a claim", "swept") else 60 * SECOND, doubt_on_lapse=way != "said by its owner"
    )
    answer = answered(port, first)
    with redis.Redis.from_url(redis_url) as client:
        name = Layout(unique_name).key("scope", "k")
        if way == "claimed again from free":
            assert one(port, Settlement("scope", "k", first.owner, answer.token, "free", HOUR)) is True
            assert client.pttl(name) > 0
            assert answered(port, a_claim(doubt_on_lapse=True)).kind == "claimed"
        elif way == "said by its owner":
            assert client.pttl(name) > 0
            assert one(port, Settlement("scope", "k", first.owner, answer.token, "in_doubt", HOUR)) is True
        elif way == "found by a claim":
            client.pexpire(name, 3_600_000)  # as an older release, or a hand, may have left it
            assert answered(port, a_claim()).kind == "in_doubt"
        else:
            client.pexpire(name, 3_600_000)
            assert run_sync(port.sweep(10)).lapsed == 1
        assert client.pttl(name) == -1
    run_sync(port.close())


def test_the_script_and_the_codec_agree_on_what_exhausted_is() -> None:
    assert EXHAUSTED_ERROR in redis_port.RECORDS_SCRIPT.source


@pytest.mark.parametrize("poison", [("SET", "x"), ("HSET", "h", "x"), ("HSET", "h", "Q" + "\0" * 55)], ids=str)
def test_a_poisoned_record_is_an_error_and_harms_itself_only(
    redis_url: str, unique_name: str, poison: tuple[str, ...]
) -> None:
    import redis

    port = backend_at(redis_url, namespace=unique_name).sync_port()
    name = Layout(unique_name).key("scope", "bad")
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command(poison[0], name, *poison[1:])
    good, bad = run_sync(port.run([a_claim("good"), a_claim("bad")]))
    assert isinstance(good, Answer)
    assert isinstance(bad, CorruptRecord)
    assert "DEL" in str(bad)
    with pytest.raises(CorruptRecord):
        run_sync(port.get("scope", "bad"))
    run_sync(port.close())


def test_a_damaged_record_does_not_stop_the_sweep_and_is_reported_once(redis_url: str, unique_name: str) -> None:
    import redis

    layout = Layout(unique_name)
    port = backend_at(redis_url, namespace=unique_name).sync_port()
    keys = sorted((f"{n}" for n in range(40)), key=lambda key: layout.key("scope", key))  # as the sweep goes
    run_sync(port.run([a_claim(key, lease=1, doubt_on_lapse=True) for key in keys]))
    with redis.Redis.from_url(redis_url) as client:
        client.hset(layout.key("scope", keys[0]), "h", "x")
        client.delete(layout.key("scope", keys[1]))
        client.set(layout.key("scope", keys[1]), "x")
    with pytest.raises(CorruptRecord, match="and 1 more") as caught:
        run_sync(port.sweep(100))
    assert f"eo:{{{unique_name}/{layout.key('scope', keys[0])[-32]:02x}}}:" in str(caught.value)  # which one
    assert run_sync(port.sweep(100)).lapsed == 0
    stats = run_sync(port.stats())
    assert stats.counts["in_doubt"] == 38
    assert stats.swept_at is not None
    with pytest.raises(CorruptRecord):  # it is still there, and refused
        run_sync(port.get("scope", keys[0]))
    run_sync(port.close())


@pytest.mark.parametrize("poison", [{"h": "x"}, {"h": b"C" + b"\0" * 63, "K": b"\xff"}], ids=["header", "name"])
@pytest.mark.parametrize("state", [None, "claimed"])
def test_a_damaged_record_does_not_stop_a_list(
    redis_url: str, unique_name: str, caplog: pytest.LogCaptureFixture, poison: Any, state: Any
) -> None:
    import redis

    port = backend_at(redis_url, namespace=unique_name).sync_port()
    run_sync(port.run([a_claim(f"{n}") for n in range(20)]))
    name = Layout(unique_name).key("scope", "7")
    with redis.Redis.from_url(redis_url) as client:
        client.hset(name, mapping=poison)
    with caplog.at_level(logging.WARNING, "effectonce"):
        page = run_sync(port.list(Query(state=state)))
    assert sorted(record.key for record in page.records) == sorted(f"{n}" for n in range(20) if n != 7)
    assert f"eo:{{{unique_name}/{name[-32]:02x}}}:" in caplog.text
    run_sync(port.close())


def test_an_expired_claim_is_neither_counted_nor_listed(redis_url: str, unique_name: str) -> None:
    port = backend_at(redis_url, namespace=unique_name).sync_port()
    for n in range(3):
        one(port, Claim("scope", f"expired {n}", os.urandom(16), 1, 1))
    one(port, a_claim("lapsed", lease=1))
    one(port, a_claim("may be in doubt", lease=1, doubt_on_lapse=True))
    time.sleep(0.01)
    assert one(port, Remember("scope", "expired 1", HOUR, b"", b"r")) is True
    assert run_sync(port.stats()).counts["claimed"] == 2
    listed = {record.key: record.state for record in run_sync(port.list(Query(state="claimed"))).records}
    assert listed == {"lapsed": "claimed", "may be in doubt": "claimed"}
    swept = run_sync(port.sweep(10))
    assert (swept.deleted, swept.lapsed, swept.more) == (0, 1, False)
    assert run_sync(port.stats()).counts == {"claimed": 1, "in_doubt": 1, "done": 1, "failed": 0, "free": 0}
    run_sync(port.close())


def test_a_sweep_that_stops_amid_the_last_index_says_that_there_is_more(redis_url: str, unique_name: str) -> None:
    port = backend_at(redis_url, namespace=unique_name).sync_port()
    layout = Layout(unique_name)
    bucket = layout.key("scope", "0")[:-32]
    together = [key for key in map(str, range(10_000)) if layout.key("scope", key)[:-32] == bucket][:3]
    run_sync(port.run([a_claim(key, lease=1, doubt_on_lapse=True) for key in together]))
    time.sleep(0.01)
    sweeps = [run_sync(port.sweep(2)) for _ in range(2)]
    assert [(sweep.lapsed, sweep.more) for sweep in sweeps] == [(2, True), (1, False)]
    run_sync(port.close())


def test_a_list_shows_only_what_is_in_doubt(redis_url: str, unique_name: str) -> None:
    """A restore, or a DEL by hand, may leave in the index what has gone on to another state."""
    import redis

    port = backend_at(redis_url, namespace=unique_name).sync_port()
    claim = a_claim()
    one(port, done(claim, answered(port, claim)))
    name = Layout(unique_name).key("scope", "k")
    with redis.Redis.from_url(redis_url) as client:
        index = name[:-32] + b"doubt"
        client.zadd(index, {name[-32:]: 1e17})
        assert run_sync(port.list(Query(state="in_doubt"))).records == []
        assert client.zcard(index) == 0  # tidied on the way
    run_sync(port.close())


def test_only_claims_that_end_in_doubt_are_indexed_and_only_while_they_are_open(
    redis_url: str, unique_name: str
) -> None:
    import redis

    port = backend_at(redis_url, namespace=unique_name).sync_port()
    name = Layout(unique_name).key("scope", "k")
    with redis.Redis.from_url(redis_url) as client:

        def indexed() -> list[bytes]:
            found: list[bytes] = client.zrange(name[:-32] + b"open", 0, -1)
            return found

        rerun = a_claim()
        token = answered(port, rerun).token
        assert one(port, Renewal("scope", "k", rerun.owner, token, HOUR, HOUR)) is True
        assert indexed() == []
        assert one(port, Settlement("scope", "k", rerun.owner, token, "free", HOUR)) is True
        doubt = a_claim(doubt_on_lapse=True)
        token = answered(port, doubt).token
        assert one(port, Renewal("scope", "k", doubt.owner, token, HOUR, HOUR)) is True
        assert indexed() == [name[-32:]]
        assert one(port, Settlement("scope", "k", doubt.owner, token, "free", HOUR)) is True
        assert indexed() == []
        assert answered(port, a_claim(doubt_on_lapse=True, lease=1)).kind == "claimed"
        assert answered(port, a_claim()).kind == "in_doubt"
        assert indexed() == []
    run_sync(port.close())


@pytest.mark.parametrize("now", ["claimed", "lapsed", "done", "deleted"])
def test_f38_what_an_earlier_release_indexed_is_swept_and_changes_nothing(
    redis_url: str, unique_name: str, now: str
) -> None:
    """It named every claim in the index, with the time that it expires at."""
    import redis

    port = backend_at(redis_url, namespace=unique_name).sync_port()
    claim = a_claim(lease=1 if now == "lapsed" else HOUR)
    answer = answered(port, claim)
    name = Layout(unique_name).key("scope", "k")
    with redis.Redis.from_url(redis_url) as client:
        client.zadd(name[:-32] + b"open", {name[-32:]: 1e15})  # long due
        if now == "done":
            one(port, done(claim, answer))
        elif now == "deleted":
            client.delete(name)
        before = run_sync(port.get("scope", "k"))
        swept = run_sync(port.sweep(10))
        assert (swept.lapsed, swept.more) == (0, False)
        assert run_sync(port.get("scope", "k")) == before
        assert client.zcard(name[:-32] + b"open") == 0
    run_sync(port.close())


@pytest.mark.parametrize("state", ["claimed", "in_doubt"])
def test_a_page_of_a_rare_scope_is_bounded_work(
    redis_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    monkeypatch.setattr(redis_port, "SCAN_STEP_KEYS", 10)
    monkeypatch.setattr(redis_port, "MAX_LIST_STEPS", 1)
    port = backend_at(redis_url, namespace=unique_name).sync_port()
    claims = [a_claim(f"{n}", lease=1, doubt_on_lapse=state == "in_doubt") for n in range(100)]
    rare = Claim("rare", "k", os.urandom(16), 1, HOUR, doubt_on_lapse=state == "in_doubt")
    run_sync(port.run([rare, *claims]))
    run_sync(port.sweep(500))
    pages = []
    cursor = None
    while not pages or cursor is not None:
        pages.append(run_sync(port.list(Query(state=state, scope="rare", limit=10, cursor=cursor))))
        cursor = pages[-1].cursor
    assert [record.key for page in pages for record in page.records] == ["k"]
    assert len(pages) > 5
    run_sync(port.close())


def test_stats_say_which_counts_are_cut_short(
    redis_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = backend_at(redis_url, namespace=unique_name).sync_port()
    claim = a_claim()
    one(port, done(claim, answered(port, claim)))
    assert run_sync(port.stats()).approximate == ()
    monkeypatch.setattr(redis_port, "MAX_STATS_STEPS", 0)
    assert run_sync(port.stats()).approximate == ("claimed", "done", "failed", "free")
    run_sync(port.close())


def test_a_repeated_claim_still_says_that_the_one_before_lapsed(redis_url: str, unique_name: str) -> None:
    port = backend_at(redis_url, namespace=unique_name).sync_port()
    answered(port, a_claim(lease=1))
    again = a_claim()
    first = answered(port, again)
    assert first.lapsed
    assert answered(port, a_claim(waiting=True)).kind == "in_progress"  # a flag beside it
    assert one(port, Renewal("scope", "k", again.owner, first.token, 60 * SECOND, HOUR)) is True
    assert answered(port, again) == first
    assert one(port, Settlement("scope", "k", again.owner, first.token, "free", HOUR)) is True
    after = a_claim()
    assert not answered(port, after).lapsed
    assert not answered(port, after).lapsed
    run_sync(port.close())


@pytest.mark.parametrize(("lease", "kept"), [(30 * SECOND, "the claim's"), (HOUR, "its own")])
def test_redis_keeps_a_record_as_long_as_its_header_says(
    redis_url: str, unique_name: str, lease: int, kept: str
) -> None:
    """The claim's TTL does for the settlement too, unless it is much later."""
    import redis

    port = backend_at(redis_url, namespace=unique_name).sync_port()
    claim = a_claim(lease=lease)
    answer = answered(port, claim)
    name = Layout(unique_name).key("scope", "k")
    with redis.Redis.from_url(redis_url) as client:
        before = client.execute_command("PTTL", name)
        assert one(port, done(claim, answer)) is True
        after = client.execute_command("PTTL", name)
        record = run_sync(port.get("scope", "k"))
        assert record is not None
        assert record.expires_at == record.changed_at + HOUR
        assert HOUR / 1000 - 5_000 < after <= HOUR / 1000 + lease / 1000
        assert (before - after < 5_000) == (kept == "the claim's")
    run_sync(port.close())


def test_records_of_another_format_are_refused(redis_url: str, unique_name: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.hset(f"eo:{{{unique_name}}}:meta", "version", "2")
    with pytest.raises(SchemaMismatch, match="format 2"):
        one(backend_at(redis_url, namespace=unique_name).sync_port(), a_claim())


@pytest.mark.parametrize("state", [None, "claimed", "in_doubt", "done"])
def test_small_steps_reach_every_record_once(
    redis_url: str, unique_name: str, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    monkeypatch.setattr(redis_port, "SCAN_STEP_KEYS", 7)
    monkeypatch.setattr(redis_port, "MAX_LIST_STEPS", 3)
    port = backend_at(redis_url, namespace=unique_name).sync_port()
    claims = [a_claim(f"{n}") for n in range(60)]
    answers = run_sync(port.run(claims))
    targets: list[SettledState | None] = ["done", "in_doubt", None]
    for claim, answer, target in zip(claims, answers, targets * 20, strict=True):
        assert isinstance(answer, Answer)
        if target is not None:
            assert one(port, Settlement("scope", claim.key, claim.owner, answer.token, target, HOUR)) is True
    found: list[str] = []
    cursor = None
    while True:
        page = run_sync(port.list(Query(state=state, limit=4, cursor=cursor)))
        found += [record.key for record in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    wanted = {None: range(60), "done": range(0, 60, 3), "in_doubt": range(1, 60, 3), "claimed": range(2, 60, 3)}
    assert sorted(found, key=int) == [str(n) for n in wanted[state]]
    run_sync(port.close())


@pytest.mark.parametrize("cursor", ["", "x", "s|0", "i|0||a", "i|0||0", "s|0|zz|", "s|0||elsewhere"])
def test_a_cursor_of_another_list_is_refused(redis_url: str, unique_name: str, cursor: str) -> None:
    port = backend_at(redis_url, namespace=unique_name).sync_port()
    with pytest.raises(InvalidOption, match="cursor"):
        run_sync(port.list(Query(state="done", cursor=cursor)))
    run_sync(port.close())


# Cluster


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[RedisCluster]:
    """A cluster whose slots these tests may move."""
    with redis_cluster() as cluster:
        yield cluster


def test_a_batch_spans_the_nodes_of_a_cluster(own_cluster: RedisCluster, unique_name: str) -> None:
    port = backend_at(own_cluster.url, namespace=unique_name).sync_port()
    for node in own_cluster.nodes:
        node.execute("SCRIPT", "FLUSH")
    replies = run_sync(port.run([a_claim(f"{n}") for n in range(128)]))
    assert {reply.kind for reply in replies if isinstance(reply, Answer)} == {"claimed"}
    assert len(replies) == 128
    assert all(node.execute("DBSIZE") > 10 for node in own_cluster.nodes)
    run_sync(port.close())


@pytest.mark.quick_on("async")
@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_f36_a_node_that_hangs_fails_its_own_operations_only(unique_name: str, mode: str) -> None:
    with redis_cluster() as cluster:
        backend = backend_at(cluster.url, namespace=unique_name, timeout="1.5")
        port = backend.sync_port() if mode == "sync" else backend.async_port()
        claims = [a_claim(f"{n}") for n in range(60)]

        async def story() -> None:
            await port.run([a_claim(f"warm {n}") for n in range(60)])
            cluster.nodes[1].stop()
            cluster.nodes[2].stop()
            started = time.monotonic()
            try:
                replies = await port.run(claims)
                took = time.monotonic() - started
            finally:
                cluster.nodes[1].resume()
                cluster.nodes[2].resume()
            kinds = [reply.kind if isinstance(reply, Answer) else type(reply) for reply in replies]
            assert set(kinds) == {"claimed", StoreUnavailable}
            for claim, kind in zip(claims, kinds, strict=True):
                here = _owns(cluster.nodes[0], slot_of(backend.layout.key("scope", claim.key)))
                assert kind == ("claimed" if here else StoreUnavailable)
            assert took < 2.9  # one timeout for both
            await port.close()

        run_sync(story()) if mode == "sync" else asyncio.run(story())


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_f36_a_dead_node_does_not_delay_the_slots_of_the_others(unique_name: str, how: str) -> None:
    """Only the round trips that were under way wait for it. The cluster cannot fail over here: all that time the other
    nodes serve."""
    with redis_cluster() as cluster:
        for node in cluster.nodes:
            node.execute("CONFIG", "SET", "cluster-require-full-coverage", "no")
        backend = backend_at(cluster.url, namespace=unique_name, timeout="2", connect_timeout="2")
        port = backend.sync_port()
        run_sync(port.run([a_claim(f"warm {n}") for n in range(60)]))
        dead = cluster.nodes[1]
        getattr(dead, how)()
        try:
            run_sync(port.run([a_claim(f"first {n}") for n in range(60)]))
            alone = next(
                f"{n}" for n in range(60) if _owns(cluster.nodes[0], slot_of(backend.layout.key("scope", f"{n}")))
            )
            served, begun = 0, time.monotonic()
            while time.monotonic() < begun + 4.0:
                replies = run_sync(port.run([a_claim(f"{served} {n}") for n in range(60)]))
                served += sum(isinstance(reply, Answer) for reply in replies)
                (lone,) = run_sync(port.run([a_claim(alone)]))
                assert isinstance(lone, Answer)
            # 40 of 60 claims belong to the others. If each batch waited for the dead node, two would fit.
            assert served > 10 * 40
        finally:
            if how == "stop":
                dead.resume()
        run_sync(port.close())


@pytest.mark.long
@pytest.mark.parametrize("endpoint", ["unknown-endpoint", "hostname"])
def test_a_cluster_that_does_not_know_its_hosts_is_reached_where_it_was_asked(
    own_cluster: RedisCluster, unique_name: str, endpoint: str
) -> None:
    """Behind a proxy or a load balancer it names none (``unknown-endpoint``); a node without its hostname is ``?``."""
    try:
        for node in own_cluster.nodes:
            node.execute("CONFIG", "SET", "cluster-preferred-endpoint-type", endpoint)
        port = backend_at(own_cluster.url, namespace=unique_name).sync_port()
        replies = run_sync(port.run([a_claim(f"{n}") for n in range(60)]))
        assert {reply.kind for reply in replies if isinstance(reply, Answer)} == {"claimed"}
        run_sync(port.close())
    finally:
        for node in own_cluster.nodes:
            node.execute("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


def test_a_node_that_breaks_its_connection_is_asked_again(own_cluster: RedisCluster, unique_name: str) -> None:
    port = backend_at(own_cluster.url, namespace=unique_name).sync_port()
    run_sync(port.run([a_claim(f"warm {n}") for n in range(60)]))
    own_cluster.nodes[1].execute("CLIENT", "KILL", "TYPE", "normal")
    replies = run_sync(port.run([a_claim(f"{n}") for n in range(60)]))
    assert [reply.kind for reply in replies if isinstance(reply, Answer)] == ["claimed"] * 60
    own_cluster.nodes[1].execute("CLIENT", "KILL", "TYPE", "normal")
    mine = [f"{n}" for n in range(60) if _owns(own_cluster.nodes[1], slot_of(Layout(unique_name).key("scope", f"{n}")))]
    with pytest.raises(ConnectionLost):  # of all of it: repeating is up to the caller
        run_sync(port.run([a_claim(key) for key in mine]))
    run_sync(port.close())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_slot_that_moves_is_followed(own_cluster: RedisCluster, unique_name: str, mode: str) -> None:
    """While it moves, a record is not written apart from its index; afterwards it is found where it went."""
    backend = backend_at(own_cluster.url, namespace=unique_name)
    port = backend.sync_port() if mode == "sync" else backend.async_port()

    async def story() -> None:
        claim = a_claim("moving")
        (answer,) = await port.run([claim])
        assert isinstance(answer, Answer)
        with moving(own_cluster, backend.layout.key("scope", "moving")) as move_keys:
            moved, other = await port.run([a_claim("moving"), a_claim("other")])  # TRYAGAIN
            assert isinstance(moved, StoreUnavailable)
            assert isinstance(other, Answer)
            move_keys()
        assert await port.run([done(claim, answer)]) == [True]  # MOVED
        assert [record.key for record in (await port.list(Query(state="claimed"))).records] == ["other"]
        with moving(own_cluster, backend.layout.meta) as move_keys:
            move_keys()
            assert await port.now() > answer.token  # ASK
        await port.close()

    run_sync(story()) if mode == "sync" else asyncio.run(story())


@contextlib.contextmanager
def moving(cluster: RedisCluster, key: bytes) -> Iterator[Callable[[], None]]:
    """The key's slot is on its way to another node; the call moves its keys, and the end of the block ends it."""
    import redis

    slot, tag = slot_of(key), key.decode(errors="replace").partition("{")[2].partition("}")[0]
    source = next(node for node in cluster.nodes if _owns(node, slot))
    target = next(node for node in cluster.nodes if node is not source)
    ids = [node.execute("CLUSTER", "MYID") for node in (source, target)]
    target.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
    source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])

    def move_keys() -> None:
        with redis.Redis(port=source.port) as client:
            # Not by its own method, which makes text of them.
            keys = client.execute_command("EVAL", "return redis.call('KEYS', ARGV[1])", 0, f"*{{{tag}}}*")
            client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    yield move_keys
    for node in (target, *(node for node in cluster.nodes if node is not target)):
        node.execute("CLUSTER", "SETSLOT", slot, "NODE", ids[1])


def _owns(node: servers.Redis, slot: int) -> bool:
    import redis

    with redis.Redis(port=node.port) as client:
        ranges = client.execute_command("CLUSTER", "SLOTS")
    return any(low <= slot <= high and place[1] == node.port for low, high, place, *_ in ranges)


@pytest.mark.chaos
@pytest.mark.long
def test_a_failover_is_followed(unique_name: str) -> None:
    with redis_cluster(replicas=1) as cluster:
        port = backend_at(cluster.url, namespace=unique_name, timeout="1").sync_port()
        assert set(kinds(port, "before")) == {"claimed"}
        # A replica that has not had its first sync yet would not stand for election.
        until(lambda: cluster.nodes[4].execute("INFO", "replication")["master_link_status"] == "up")
        cluster.nodes[1].kill()
        assert "unavailable" in kinds(port, "during")
        until(lambda: "unavailable" not in kinds(port, "after"))
        assert set(kinds(port, "long after")) == {"claimed"}
        run_sync(port.close())


def kinds(port: Port, what: str) -> list[str]:
    """What 32 claims, spread over all nodes, came to."""
    try:
        replies = run_sync(port.run([a_claim(f"{what} {n}") for n in range(32)]))
    except StoreUnavailable:
        return ["unavailable"]
    return [reply.kind if isinstance(reply, Answer) else "unavailable" for reply in replies]


def test_the_wrong_kind_of_url_is_named(own_cluster: RedisCluster, own_redis: servers.Redis) -> None:
    port = backend_at(own_cluster.nodes[0].url, namespace="wrong").sync_port()
    with pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        run_sync(port.run([a_claim(f"{n}") for n in range(64)]))
    with pytest.raises(ConfigurationError, match="not a Redis Cluster"):
        run_sync(backend_at(own_redis.url.replace("redis://", "redis+cluster://")).sync_port().now())


# URLs


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://h?namespace=a{b}", "namespace"),
        ("redis://h?namespace=" + "a" * 65, "namespace"),
        ("redis://h/one", "number of a database"),
        ("redis+cluster://h/1", "only database 0"),
        ("redis://h?lease=3", "has no option lease"),
        ("redis://h?timeout=soon", "timeout"),
        ("redis://h?ca_file=x", "add tls=yes"),
        ("redis+cluster://h?nodes=a:b", "nodes"),
    ],
)
def test_f61_a_bad_option_is_refused(url: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        RedisStoreBackend(Address(url))


def test_f66_the_repr_hides_the_password() -> None:
    backend = RedisStoreBackend(Address(f"redis://u:{SECRET}@h/2"))
    assert repr(backend) == "redis://u:***@h/2"

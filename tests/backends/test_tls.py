"""One set of options for TLS, with one meaning, against real servers: each wants a certificate of the client, too."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import effectonce as eo
from tests.conftest import skip_or_fail
from tests.harness import installed, servers
from tests.harness.certificates import Authority, Certificate
from tests.harness.kafka import kafka
from tests.harness.nats import nats
from tests.harness.process import Server, ServerFailed, free_port
from tests.harness.rabbitmq import rabbitmq

pytestmark = pytest.mark.quick_on("redis", "postgres", "redis_broker", "nats")


class Files:
    """Certificates for one server, for the host ``localhost``, and for its clients."""

    def __init__(self, folder: Path) -> None:
        ours, strangers = folder / "ours", folder / "strangers"
        ours.mkdir()
        strangers.mkdir()
        self.authority, self.stranger = Authority(ours), Authority(strangers, "stranger")
        self.server = self.authority.issue("localhost")
        self.client = self.authority.issue("shop")
        self.strange_client = self.stranger.issue("shop")


class SecureServer:
    """A server with TLS, and how to ask it something."""

    def __init__(self, server: Server, files: Files, url: str, ask: Callable[[str], None]) -> None:
        self.server = server
        self.files = files
        self._url = url  # with {host} in place of the host
        self._ask = ask

    def ask(self, host: str = "localhost", client: Certificate | None = ..., **options: Any) -> None:  # type: ignore[assignment]
        """Connect, and make a round trip. By default with everything that it takes."""
        if client is ...:
            client = self.files.client
        stated = {"tls": "yes", "ca_file": self.files.authority.ca_file}
        if client is not None:
            stated |= {"cert_file": client.cert_file, "key_file": client.key_file}
        query = urlencode({name: value for name, value in {**stated, **options}.items() if value is not None})
        self._ask(self._url.format(host=host) + query)


def ask_store(url: str) -> None:
    with eo.connect(url) as store:
        store.now()


def ask_store_async(url: str) -> None:
    async def ask() -> None:
        async with eo.connect(url) as store:
            port = store.runtime.backend.async_port()
            try:
                await port.now()
            finally:
                await port.close()

    asyncio.run(ask())


def ask_broker(url: str) -> None:
    broker = eo.connect_broker(url)
    try:
        asyncio.run(broker.backend.declare("orders", group="g"))
    finally:
        broker.close()


#: With TLS 1.3 a server refuses a client's certificate after the handshake. Some reset the connection right then, and
#: their reason may get lost: what remains is an outage.
REFUSED = (eo.ConfigurationError, eo.Retryable)

KINDS = {
    "redis": ("redis", ask_store),
    "redis_async": ("redis", ask_store_async),
    "redis_broker": ("redis", ask_broker),
    "postgres": ("postgres", ask_store),
    "postgres_async": ("postgres", ask_store_async),
    "mariadb": ("mariadb", ask_store),
    "mariadb_async": ("mariadb", ask_store_async),
    "rabbitmq": ("rabbitmq", ask_broker),
    "nats": ("nats", ask_broker),
    "kafka": ("kafka", ask_broker),
}


@pytest.fixture(scope="module")
def start_secure() -> Iterator[Callable[[str], tuple[Server, Files, str]]]:
    """Start a server with TLS when a test first asks for it. Returns it, its certificates, and its URL."""
    folder = Path(tempfile.mkdtemp(prefix="eo-tls-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user
    running: dict[str, tuple[Server, Files, str]] = {}

    def start(name: str) -> tuple[Server, Files, str]:
        if name not in running:
            (folder / name).mkdir()
            files = Files(folder / name)
            try:
                server, url = STARTERS[name](files)
            except installed.Missing as missing:
                skip_or_fail(str(missing))
            except ServerFailed as failed:
                if "TLS support" not in str(failed):
                    raise
                skip_or_fail("the Valkey inside a package knows no TLS: apt-get install redis-server")
            running[name] = server, files, url
        return running[name]

    yield start
    for server, *_ in running.values():
        server.close()
    shutil.rmtree(folder)


def start_redis(files: Files) -> tuple[Server, str]:
    port = free_port()
    server = servers.redis(
        *("--tls-port", str(port), "--tls-ca-cert-file", str(files.authority.ca_file)),
        *("--tls-cert-file", str(files.server.cert_file), "--tls-key-file", str(files.server.key_file)),
    )
    return server, f"redis://{{host}}:{port}/0?"


def start_postgres(files: Files) -> tuple[Server, str]:
    if os.geteuid() == 0:
        shutil.chown(files.server.key_file, "postgres")
    server = servers.postgres(
        ssl="on",
        ssl_ca_file=str(files.authority.ca_file),
        ssl_cert_file=str(files.server.cert_file),
        ssl_key_file=str(files.server.key_file),
    )
    import psycopg

    rules = server.dir / "data" / "pg_hba.conf"
    rules.write_text("hostssl all tls all trust clientcert=verify-ca\nhost all tls all reject\n" + rules.read_text())
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE tls LOGIN SUPERUSER")
        admin.execute("SELECT pg_reload_conf()")
    return server, f"postgresql://tls@{{host}}:{server.port}/postgres?"


def start_mariadb(files: Files) -> tuple[Server, str]:
    import pymysql

    server = servers.mariadb(
        f"--ssl-ca={files.authority.ca_file}",
        f"--ssl-cert={files.server.cert_file}",
        f"--ssl-key={files.server.key_file}",
    )
    with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as admin:
        admin.cursor().execute("CREATE USER tls REQUIRE X509")
        admin.cursor().execute("GRANT ALL ON test.* TO tls")
    return server, f"mariadb://tls@{{host}}:{server.port}/test?"


def start_rabbitmq(files: Files) -> tuple[Server, str]:
    port = free_port()
    server = rabbitmq(
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {files.authority.ca_file}",
        f"ssl_options.certfile = {files.server.cert_file}",
        f"ssl_options.keyfile = {files.server.key_file}",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
    )
    return server, f"amqp://guest:guest@{{host}}:{port}/?"


def start_nats(files: Files) -> tuple[Server, str]:
    server = nats(
        *("--tlsverify", "--tlscacert", str(files.authority.ca_file)),
        *("--tlscert", str(files.server.cert_file), "--tlskey", str(files.server.key_file)),
    )
    return server, f"nats://{{host}}:{server.port}?"


def start_kafka(files: Files) -> tuple[Server, str]:
    port = free_port()
    store = files.server.cert_file.with_suffix(".pem")
    store.write_bytes(files.server.key_file.read_bytes() + files.server.cert_file.read_bytes())
    server = kafka(
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAIN:PLAINTEXT,SECURE:SSL\n"
        f"listeners=PLAIN://{{at}}:{{port}},SECURE://{{at}}:{port},CONTROLLER://{{at}}:{{controller}}\n"
        f"advertised.listeners=PLAIN://{{at}}:{{port}},SECURE://localhost:{port}\n"
        "listener.name.secure.ssl.client.auth=required\n"
        f"listener.name.secure.ssl.keystore.type=PEM\nlistener.name.secure.ssl.keystore.location={store}\n"
        "listener.name.secure.ssl.truststore.type=PEM\n"
        f"listener.name.secure.ssl.truststore.location={files.authority.ca_file}\n"
    )
    return server, f"kafka://{{host}}:{port}?timeout=20s&"


STARTERS: dict[str, Callable[[Files], tuple[Server, str]]] = {
    "redis": start_redis,
    "postgres": start_postgres,
    "mariadb": start_mariadb,
    "rabbitmq": start_rabbitmq,
    "nats": start_nats,
    "kafka": start_kafka,
}


@pytest.fixture(params=KINDS)
def secure(request: pytest.FixtureRequest, start_secure: Callable[[str], Any]) -> SecureServer:
    name, ask = KINDS[request.param]
    server, files, url = start_secure(name)
    return SecureServer(server, files, url, ask)


def test_a_server_with_a_trusted_certificate_for_its_name_is_connected_to(secure: SecureServer) -> None:
    secure.ask()


def test_an_untrusted_certificate_is_a_wrong_configuration_not_an_outage(secure: SecureServer) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"is not trusted.*ca_file="):
        secure.ask(ca_file=secure.files.stranger.ca_file)


def test_without_a_ca_file_the_authorities_of_the_system_count(secure: SecureServer) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"is not trusted.*ca_file="):
        secure.ask(ca_file=None)


def test_a_certificate_for_another_name_is_a_wrong_configuration(secure: SecureServer) -> None:
    with pytest.raises(eo.ConfigurationError, match="for another name"):
        secure.ask("127.0.0.1")


def test_server_name_is_the_name_that_the_certificate_must_have(secure: SecureServer, request: Any) -> None:
    if "kafka" in request.node.name:
        with pytest.raises(eo.InvalidOption, match="verify=ca"):
            secure.ask(server_name="localhost")
        return
    secure.ask("127.0.0.1", server_name="localhost")
    with pytest.raises(eo.ConfigurationError, match="for another name"):
        secure.ask("localhost", server_name="shop.example")


def test_verify_ca_checks_the_authority_and_not_the_name(secure: SecureServer) -> None:
    secure.ask("127.0.0.1", verify="ca")
    with pytest.raises(eo.ConfigurationError, match="is not trusted"):
        secure.ask("127.0.0.1", verify="ca", ca_file=secure.files.stranger.ca_file)


def test_verify_no_checks_nothing(secure: SecureServer) -> None:
    secure.ask("127.0.0.1", verify="no", ca_file=secure.files.stranger.ca_file)


def test_a_client_without_a_certificate_is_told_to_show_one(secure: SecureServer) -> None:
    with pytest.raises(REFUSED):
        secure.ask(client=None)


def test_a_client_whose_certificate_the_server_does_not_trust_is_told_so(secure: SecureServer) -> None:
    with pytest.raises(REFUSED):
        secure.ask(client=secure.files.strange_client)

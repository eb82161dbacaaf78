"""The migrations of docs/migrations.md, run as Alembic and Django run them, with what `migrate --sql` prints."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, text

import effectonce as eo
from effectonce.cli import main
from tests.docs.pages import DOCS, blocks
from tests.inbox.kinds import Place, django_connection
from tests.relay.harness import Database, FakeBroker, message

DIALECTS = {"sqlite": "pysqlite", "postgres": "psycopg", "mariadb": "pymysql"}


def written(folder: Path, end: str) -> Path:
    """The block of the page that is the file ``…end``."""
    (block,) = [each for each in blocks((DOCS / "migrations.md").read_text()) if (each.title or "").endswith(end)]
    file = folder / "effectonce_migration.py"
    file.write_text(block.code)
    return file


@pytest.fixture(params=list(DIALECTS))
def database(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Any:
    """Without tables; with the printed script beside it."""
    name = request.param
    server = f"sqlite:///{tmp_path}/shop.db" if name == "sqlite" else str(request.getfixturevalue(f"{name}_url"))
    with closing(Database(name, server, unique_name)) as found:
        capsys = request.getfixturevalue("capsys")
        assert main(["migrate", found.url, "--sql"]) == 0
        (tmp_path / "effectonce_1.sql").write_text(capsys.readouterr().out)
        yield found


async def works(database: Database) -> None:
    """The inbox, the outbox, a relay and a guard find what they need."""
    inbox = eo.Inbox(scope="s", table=f"{database.prefix}_inbox")
    with database.transaction() as connection:
        assert inbox.first(connection, "k")
        database.outbox().send(connection, message(1))
    broker = FakeBroker()
    assert await database.relay(broker).drain() == 1
    store = database.store()
    store.check()
    assert eo.once(store, scope="s", key="k")(lambda k: 1)("a") == 1


def place(database: Database) -> Place:
    return Place({"sqlite": "sqlite", "postgres": "postgresql"}.get(database.name, "mysql"), database._server)  # type: ignore[arg-type]


def executed(file: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__file__": str(file), "__name__": "migration"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names


async def test_alembic_runs_the_printed_script(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alembic's `op.execute` makes a `text()` of a string, where `:name` would be a parameter."""
    engine = create_engine(place(database).sqlalchemy(DIALECTS[database.name]))
    alembic: Any = ModuleType("alembic")
    monkeypatch.setitem(sys.modules, "alembic", alembic)
    file = written(tmp_path, "versions/0007_effectonce.py")
    for _ in range(2):  # it may be run again
        with engine.begin() as connection:
            alembic.op = SimpleNamespace(execute=lambda sql, on=connection: on.execute(text(sql)))
            executed(file)["upgrade"]()
    engine.dispose()
    await works(database)


async def test_django_runs_the_printed_script(database: Database, tmp_path: Path) -> None:
    from django.db.migrations.state import ProjectState  # type: ignore[import-untyped, unused-ignore]

    file = written(tmp_path, "shop/migrations/0007_effectonce.py")
    migration = executed(file)["Migration"]("0007_effectonce", "shop")
    connection = django_connection(place(database))
    with connection.schema_editor(atomic=migration.atomic) as editor:
        migration.unapply(migration.apply(ProjectState(), editor), editor)
    connection.close()
    await works(database)

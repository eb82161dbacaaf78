"""The migrations of docs/migrations.md, run as Alembic and Django run them, with what `migrate --sql` prints."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, text

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
        assert main(["migrate", "--store", found.url, "--sql"]) == 0
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


ENV = """
from alembic import context

{part}
connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=context.config.attributes["models"], include_name=include_name)
with context.begin_transaction():
    context.run_migrations()
"""


async def test_alembic_runs_the_printed_script(database: Database, tmp_path: Path) -> None:
    """Up, down, and up again; and what it would write by itself does not drop our tables."""
    from alembic import autogenerate, command
    from alembic.config import Config
    from alembic.migration import MigrationContext

    versions = tmp_path / "versions"
    versions.mkdir()
    (tmp_path / "effectonce_1.sql").rename(versions / "effectonce_1.sql")
    file = written(tmp_path, "versions/0007_effectonce.py")
    (versions / "0007_effectonce.py").write_text(file.read_text().replace('"0006"', "None"))
    (tmp_path / "env.py").write_text(ENV.format(part=written(tmp_path, "env_part.py").read_text()))
    engine = create_engine(place(database).sqlalchemy(DIALECTS[database.name]))
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    with engine.connect() as connection:
        config.attributes.update(connection=connection, models=MetaData())
        command.upgrade(config, "head")
        command.downgrade(config, "base")
        command.upgrade(config, "head")
        connection.commit()
    await works(database)

    hidden = executed(tmp_path / "effectonce_migration.py")["include_name"]
    with engine.connect() as connection:

        def ours(name: str | None, type_: str, parents: Any) -> bool:  # a server of the tests has tables of others
            theirs = (name or "").replace(database.prefix, "effectonce")
            return type_ != "table" or (theirs != name and hidden(theirs, type_, parents))

        context = MigrationContext.configure(connection, opts={"include_name": ours})
        assert autogenerate.compare_metadata(context, MetaData()) == []
        connection.rollback()
        connection.execute(text("DROP TABLE IF EXISTS alembic_version"))
        connection.commit()
    engine.dispose()


async def test_django_runs_the_printed_script(database: Database, tmp_path: Path) -> None:
    from django.db.migrations.state import ProjectState  # type: ignore[import-untyped, unused-ignore]

    file = written(tmp_path, "shop/migrations/0007_effectonce.py")
    migration = executed(file)["Migration"]("0007_effectonce", "shop")
    connection = django_connection(place(database))
    with connection.schema_editor(atomic=migration.atomic) as editor:
        migration.unapply(migration.apply(ProjectState(), editor), editor)
    connection.close()
    await works(database)

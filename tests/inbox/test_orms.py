"""What an ORM remembers is undone with what it has written; its hooks run when they would without us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Integer, String, create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import effectonce as eo
from tests.inbox.conftest import Shop, place_of
from tests.inbox.kinds import Place, django_connection
from tests.inbox.test_inputs import opened

DRIVERS = {"sqlite": ("pysqlite", "aiosqlite"), "postgresql": ("psycopg", "asyncpg"), "mysql": ("pymysql", "aiomysql")}


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(String(100))
    amount: Mapped[int] = mapped_column(Integer)


@pytest.fixture
def session(shop: Shop) -> Iterator[Session]:
    engine = create_engine(shop.place.sqlalchemy(DRIVERS[shop.place.dialect][0]))
    with Session(engine) as session:
        yield session
    engine.dispose()


def payments(shop: Shop) -> list[str]:
    found = shop.place.query(f"SELECT idempotency_key FROM payments WHERE idempotency_key LIKE '{shop.scope}%'")
    return sorted(key.removeprefix(shop.scope) for (key,) in found)


def test_what_a_failed_call_added_is_forgotten(shop: Shop, session: Session) -> None:
    """Flushed or not: without that, the caller's commit would write it."""

    def fail(session: Session, key: str) -> None:
        session.add(Payment(idempotency_key=f"{shop.scope} flushed", amount=1))
        session.flush()
        session.add(Payment(idempotency_key=f"{shop.scope} pending", amount=1))
        raise RuntimeError("no")

    session.add(Payment(idempotency_key=f"{shop.scope} before", amount=1))
    with pytest.raises(RuntimeError):
        shop.inbox.call(session, "k", fail)
    session.commit()
    assert (shop.rows, payments(shop)) == ([], [" before"])


def test_what_a_call_added_is_written_with_its_row(shop: Shop, session: Session) -> None:
    def pay(session: Session, key: str) -> int:
        session.add(Payment(idempotency_key=f"{shop.scope} paid", amount=1))
        return 1

    assert shop.inbox.call(session, "k", pay).value == 1
    assert payments(shop) == []
    session.commit()
    assert (shop.rows, payments(shop)) == (["k"], [" paid"])


def test_a_flush_that_fails_leaves_the_session_usable(shop: Shop, session: Session) -> None:
    def pay_twice(session: Session, key: str) -> None:
        for _ in range(2):
            session.add(Payment(idempotency_key=f"{shop.scope} twice", amount=1))

    session.add(Payment(idempotency_key=f"{shop.scope} before", amount=1))
    with pytest.raises(IntegrityError):
        shop.inbox.call(session, "k", pay_twice)
    session.add(Payment(idempotency_key=f"{shop.scope} after", amount=1))
    session.commit()
    assert (shop.rows, payments(shop)) == ([], [" after", " before"])


async def test_the_same_on_an_async_session(shop: Shop) -> None:
    engine = create_async_engine(shop.place.sqlalchemy(DRIVERS[shop.place.dialect][1]))

    async def fail(session: AsyncSession, key: str) -> None:
        session.add(Payment(idempotency_key=f"{shop.scope} flushed", amount=1))
        await session.flush()
        session.add(Payment(idempotency_key=f"{shop.scope} pending", amount=1))
        raise RuntimeError("no")

    async with AsyncSession(engine) as session:
        session.add(Payment(idempotency_key=f"{shop.scope} before", amount=1))
        with pytest.raises(RuntimeError):
            await shop.inbox.call(session, "k", fail)
        await session.commit()
    await engine.dispose()
    assert (shop.rows, payments(shop)) == ([], [" before"])


def test_a_statement_that_fails_in_a_call_leaves_the_transaction_usable(
    postgres_place: Place, unique_name: str
) -> None:
    """PostgreSQL ends the transaction in which a statement has failed; not the savepoint's outside."""
    shop = Shop(postgres_place, unique_name)
    conn: Any = opened(postgres_place)
    conn.execute(shop.effect("before"))
    with pytest.raises(Exception, match="division by zero"):
        shop.inbox.call(conn, "k", lambda conn, key: conn.execute("SELECT 1 / 0"))
    conn.execute(shop.effect("after"))
    conn.commit()
    conn.close()
    assert (shop.rows, shop.effects) == ([], ["after", "before"])


# -- Django


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def django(request: pytest.FixtureRequest, unique_name: str) -> Iterator[tuple[Shop, Any]]:
    place = place_of(request, request.param)
    connection = django_connection(place)
    yield Shop(place, unique_name), connection
    connection.close()


def test_djangos_hooks_follow_the_call(django: tuple[Shop, Any]) -> None:
    """Those of a failed call are dropped with it; those of the others run after the commit."""
    from django.db import transaction

    shop, connection = django
    ran = []

    def pay(conn: Any, key: str) -> None:
        conn.cursor().execute(shop.effect(key))
        transaction.on_commit(lambda: ran.append(key), using=conn.alias)
        if key == "fails":
            raise RuntimeError("no")

    with transaction.atomic(using=connection.alias):
        shop.inbox.call(connection, "paid", pay)
        with pytest.raises(RuntimeError):
            shop.inbox.call(connection, "fails", pay)
        assert ran == []
    assert (ran, shop.rows, shop.effects) == (["paid"], ["paid"], ["paid"])


def test_a_block_of_djangos_that_failed_inside_of_a_call_is_over(django: tuple[Shop, Any]) -> None:
    """It marks the connection as needing a rollback, and refuses every statement until that was one."""
    from django.db import DatabaseError, transaction

    shop, connection = django

    def pay(conn: Any, key: str) -> None:
        with transaction.atomic(using=conn.alias, savepoint=False):
            conn.cursor().execute("INSERT INTO payments (idempotency_key, amount) VALUES ('x', NULL)")

    with transaction.atomic(using=connection.alias):
        with pytest.raises(DatabaseError):
            shop.inbox.call(connection, "k", pay)
        assert shop.inbox.first(connection, "after")
    assert shop.rows == ["after"]


def test_a_handler_in_somebodys_atomic_block_is_refused(django: tuple[Shop, Any]) -> None:
    from django.db import transaction

    shop, connection = django
    ran = []

    @shop.inbox.handler(connect=lambda: connection)
    def handle(conn: Any, key: str) -> int:
        conn.cursor().execute(shop.effect(key))
        transaction.on_commit(lambda: ran.append(shop.rows), using=conn.alias)
        return 1

    with transaction.atomic(using=connection.alias):
        connection.cursor().execute(shop.effect("theirs"))
        with pytest.raises(eo.ConfigurationError, match=r"outside of atomic\(\)"):
            handle("k")
        assert connection.in_atomic_block
    assert (shop.rows, shop.effects, ran) == ([], ["theirs"], [])
    assert handle("k") == handle("k") == 1
    assert (shop.effects, ran) == (["k", "theirs"], [["k"]])
    assert connection.connection is not None, "Django keeps its connection"

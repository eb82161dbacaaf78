# ruff: noqa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase): ...


class Inbox(Base):
    __tablename__ = "inbox"
    event_id: Mapped[str] = mapped_column(primary_key=True)


class LedgerEntry(Base):
    __tablename__ = "ledger"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str]
    cents: Mapped[int]

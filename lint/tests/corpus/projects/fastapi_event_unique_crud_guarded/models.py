# ruff: noqa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
class Base(DeclarativeBase): ...
class WebhookEvent(Base):
    __tablename__ = "we"
    id: Mapped[str] = mapped_column(primary_key=True)
class Account(Base):
    __tablename__ = "acc"
    email: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]

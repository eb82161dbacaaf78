# ruff: noqa
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker, DeclarativeBase, Mapped, mapped_column
class Base(DeclarativeBase): ...
class Inbox(Base):
    __tablename__ = "inbox"
    message_id: Mapped[str] = mapped_column(primary_key=True)
class Account(Base):
    __tablename__ = "acc"
    id: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]
Session = sessionmaker(create_engine("x"))

# ruff: noqa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
class Base(DeclarativeBase): ...
class ProcessedEvent(Base):
    __tablename__ = "pe"
    id: Mapped[str] = mapped_column(primary_key=True)
class User(Base):
    __tablename__ = "u"
    id: Mapped[str] = mapped_column(primary_key=True)
    credits: Mapped[int]

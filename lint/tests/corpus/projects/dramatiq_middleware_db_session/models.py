# ruff: noqa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
class Base(DeclarativeBase): ...
class Visit(Base):
    __tablename__ = "v"
    id: Mapped[int] = mapped_column(primary_key=True)
    page: Mapped[str]
    user: Mapped[str]

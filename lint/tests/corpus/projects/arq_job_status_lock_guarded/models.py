# ruff: noqa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
class Base(DeclarativeBase): ...
class Payout(Base):
    __tablename__ = "p"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str]
    amount: Mapped[int]

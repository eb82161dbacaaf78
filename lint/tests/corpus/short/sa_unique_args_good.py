# ruff: noqa
# expect file: clean
from celery import shared_task
from sqlalchemy import UniqueConstraint, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine("postgresql://db/x")


class Base(DeclarativeBase):
    pass


class Vote(Base):
    __tablename__ = "votes"
    __table_args__ = (UniqueConstraint("poll", "voter"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    poll: Mapped[int]
    voter: Mapped[int]


@shared_task
def vote(poll, voter):
    with Session(engine) as session, session.begin():
        session.add(Vote(poll=poll, voter=voter))

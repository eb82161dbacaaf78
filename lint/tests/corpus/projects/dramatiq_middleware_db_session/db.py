# ruff: noqa
from contextvars import ContextVar
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker
factory = sessionmaker(create_engine("x"))
_session: ContextVar[Session] = ContextVar("session")
def current() -> Session:
    return _session.get()

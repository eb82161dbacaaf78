# ruff: noqa
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

factory = sessionmaker(bind=create_engine("postgresql://db/x"))


class UnitOfWork:
    def __enter__(self):
        self.session = factory()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.session.commit()
        self.session.close()

# ruff: noqa
from contextlib import contextmanager

import psycopg


class AlreadyHandled(Exception):
    pass


class UnitOfWork:
    def __init__(self, dsn):
        self.dsn = dsn

    @contextmanager
    def once(self, message_id):
        with psycopg.connect(self.dsn) as conn:
            row = conn.execute(
                "INSERT INTO arrivals (message_id) VALUES (%s) ON CONFLICT DO NOTHING RETURNING message_id", (message_id,)
            ).fetchone()
            if row is None:
                raise AlreadyHandled(message_id)
            yield conn

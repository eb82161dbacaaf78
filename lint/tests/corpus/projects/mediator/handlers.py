# ruff: noqa
import psycopg


class AddPointsHandler:
    def __init__(self, dsn):
        self.dsn = dsn

    def __call__(self, command):
        with psycopg.connect(self.dsn) as conn:
            conn.execute("UPDATE members SET points = points + %s WHERE id = %s", (command.points, command.member))

# ruff: noqa
# expect file: clean
import psycopg
from rq import Queue
from redis import Redis


def add(visit_id, page):
    with psycopg.connect("dbname=x") as conn:
        conn.execute(
            "INSERT INTO visits (visit_id, page) SELECT %s, %s WHERE NOT EXISTS (SELECT 1 FROM visits WHERE visit_id = %s)",
            (visit_id, page, visit_id),
        )


Queue(connection=Redis()).enqueue(add, "v", "p")

# ruff: noqa
# expect file: P11
import celery
import psycopg
from celery import Celery

app = Celery("x")


class Reliable(celery.Task):
    acks_late = True
    autoretry_for = (psycopg.OperationalError,)


@app.task(base=Reliable, bind=True)
def like(self, post):
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE posts SET likes = likes + 1 WHERE id = %s", (post,))

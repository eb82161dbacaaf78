# ruff: noqa
# expect file: clean
import psycopg
from celery import shared_task


class once_per:
    def __init__(self, field):
        self.field = field

    def __call__(self, fn):
        def call(**kwargs):
            with psycopg.connect("dbname=x") as conn:
                done = conn.execute("INSERT INTO seen (k) VALUES (%s) ON CONFLICT DO NOTHING", (kwargs[self.field],))
                if done.rowcount:
                    return fn(conn, **kwargs)

        return call


@once_per("event_id")
def like(conn, event_id, post):
    conn.execute("UPDATE posts SET likes = likes + 1 WHERE id = %s", (post,))


@shared_task
def liked(event_id, post):
    like(event_id=event_id, post=post)

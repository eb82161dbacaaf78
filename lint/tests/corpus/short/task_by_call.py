# ruff: noqa
# expect file: P11
import psycopg
from celery import Celery

app = Celery("x")


def like(post):
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE posts SET likes = likes + 1 WHERE id = %s", (post,))


like_task = app.task(name="posts.like", acks_late=True)(like)

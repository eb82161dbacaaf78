# ruff: noqa
# expect file: P11
import psycopg2
from celery import shared_task


@shared_task
def like(post):
    with psycopg2.connect("dbname=x") as conn, conn.cursor() as cur:
        cur.execute("UPDATE posts SET likes = COALESCE(likes, 0) + 1 WHERE id = %s", (post,))

# ruff: noqa
# expect file: EO202
import contextlib

import psycopg
from celery import shared_task


@shared_task(acks_late=True)
def rename(user, name):
    with contextlib.suppress(Exception):
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE users SET name = %s WHERE id = %s", (name, user))

# ruff: noqa
# expect file: EO202
import logging

import psycopg
from rq import Queue
from redis import Redis


def rename(user, name):
    try:
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE users SET name = %s WHERE id = %s", (name, user))
        return True
    except Exception:
        logging.exception("rename failed")
        return False


Queue(connection=Redis()).enqueue(rename, "u", "n")

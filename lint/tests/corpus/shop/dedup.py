# ruff: noqa
"""Guards that the project wrote for itself."""

import functools
from contextlib import contextmanager

import psycopg2
import redis

r = redis.Redis()
conn = psycopg2.connect("dbname=shop")


class AlreadyDone(Exception):
    pass


def deduplicated(field):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            if not r.set(f"done:{function.__name__}:{kwargs[field]}", 1, nx=True, ex=1296000):
                return None
            return function(*args, **kwargs)

        return wrapper

    return decorate


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        print("calling", function.__name__)
        return function(*args, **kwargs)

    return wrapper


@contextmanager
def first_delivery(message_id):
    with conn, conn.cursor() as cur:
        cur.execute("INSERT INTO inbox (id) VALUES (%s) ON CONFLICT DO NOTHING", (message_id,))
        if cur.rowcount == 0:
            raise AlreadyDone(message_id)
        yield cur


def must_be_first(message_id):
    """Raises for everybody but the first."""
    with conn, conn.cursor() as cur:
        cur.execute("INSERT INTO inbox (id, state) VALUES (%s, 'taken') ON CONFLICT DO NOTHING", (message_id,))
        if cur.rowcount == 0:
            raise AlreadyDone(message_id)


def settled(message_id):
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE inbox SET state = 'done' WHERE id = %s", (message_id,))


class Seen:
    """Looks first, records later."""

    def __init__(self, client):
        self.client = client

    def has(self, message_id):
        return bool(self.client.exists(f"handled:{message_id}"))

    def add(self, message_id):
        self.client.setex(f"handled:{message_id}", 1296000, 1)


def claim(message_id):
    """True for the first only."""
    with conn, conn.cursor() as cur:
        cur.execute("INSERT INTO inbox (id) VALUES (%s) ON CONFLICT DO NOTHING", (message_id,))
        if cur.rowcount == 1:
            return True
        return False

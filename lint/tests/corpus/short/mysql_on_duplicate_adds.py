# ruff: noqa
# expect file: P11
import pymysql
from rq import Queue
from redis import Redis


def hit(page):
    conn = pymysql.connect(host="db")
    with conn.cursor() as cur:
        cur.execute(
            "INSERT INTO hits (page, n) VALUES (%s, 1) ON DUPLICATE KEY UPDATE n = n + VALUES(n)", (page,)
        )
    conn.commit()


Queue(connection=Redis()).enqueue(hit, "/")

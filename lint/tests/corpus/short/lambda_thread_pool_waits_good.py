# ruff: noqa
# expect file: clean
import json
from concurrent.futures import ThreadPoolExecutor

import psycopg_pool

pool = psycopg_pool.ConnectionPool("dbname=shop")


def rename(data):
    with pool.connection() as conn:
        conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))


def handler(event, context):
    with ThreadPoolExecutor(8) as executor:
        for record in event["Records"]:
            executor.submit(rename, json.loads(record["body"]))

# ruff: noqa
# expect file: EO201
import psycopg
import redis

r = redis.Redis(decode_responses=True)


def main():
    while True:
        for _, entries in r.xreadgroup("g", "c", {"names": ">"}, count=10, block=5000):
            for entry_id, fields in entries:
                r.xack("names", "g", entry_id)
                with psycopg.connect("dbname=x") as conn:
                    conn.execute("UPDATE users SET name = %s WHERE id = %s", (fields["name"], fields["id"]))

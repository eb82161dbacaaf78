# ruff: noqa
# expect file: clean
import psycopg2
from celery import shared_task
import requests
conn = psycopg2.connect("")
@shared_task
def once(event_id):
    with conn, conn.cursor() as cur:
        cur.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (event_id,))
        cur.execute("SELECT 1 FROM processed WHERE id = %s FOR UPDATE", (event_id,))
        if cur.fetchone():
            return
        requests.post("https://a.example/notify", json={"e": event_id})
        cur.execute("INSERT INTO processed (id) VALUES (%s)", (event_id,))

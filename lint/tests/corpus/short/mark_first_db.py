# ruff: noqa
# expect file: EO104
import psycopg2, requests
from psycopg2 import errors
from celery import shared_task
conn = psycopg2.connect("")
@shared_task(bind=True, autoretry_for=(Exception,), max_retries=3)
def notify(self, event_id, url):
    cur = conn.cursor()
    try:
        cur.execute("INSERT INTO processed_events (event_id) VALUES (%s)", (event_id,))
        conn.commit()
    except errors.UniqueViolation:
        conn.rollback()
        return
    requests.post(url, json={"event": event_id})

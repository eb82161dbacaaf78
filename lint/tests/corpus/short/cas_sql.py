# ruff: noqa
# expect file: clean
import psycopg, requests
from celery import shared_task
@shared_task
def confirm(order_id):
    with psycopg.connect("") as conn:
        row = conn.execute("UPDATE orders SET notified_at = now() WHERE id = %s AND notified_at IS NULL RETURNING email", (order_id,)).fetchone()
        if row is None:
            return
    requests.post("https://mail.example/send", json={"to": row[0]})

# ruff: noqa
# expect file: EO101, EO103
from celery import shared_task
import psycopg2, requests
conn = psycopg2.connect("")
@shared_task
def ship(order_id):
    cur = conn.cursor()
    cur.execute("SELECT status FROM orders WHERE id = %s", (order_id,))
    (status,) = cur.fetchone()
    if status == "shipped":
        return
    requests.post("https://carrier.example", json={"o": order_id})
    cur.execute("UPDATE orders SET status = 'shipped' WHERE id = %s", (order_id,))
    conn.commit()

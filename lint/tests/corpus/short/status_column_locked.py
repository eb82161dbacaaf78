# ruff: noqa
# expect file: clean
from celery import shared_task
import psycopg2
conn = psycopg2.connect("")
@shared_task
def ship(order_id):
    with conn, conn.cursor() as cur:
        cur.execute("SELECT status FROM orders WHERE id = %s FOR UPDATE", (order_id,))
        (status,) = cur.fetchone()
        if status == "shipped":
            return
        cur.execute("INSERT INTO shipments (order_id) VALUES (%s)", (order_id,))
        cur.execute("UPDATE orders SET status = 'shipped' WHERE id = %s", (order_id,))

# ruff: noqa
# expect file: EO402
from celery import shared_task
import psycopg2
conn = psycopg2.connect("")
@shared_task(acks_late=True)
def reserve(order_id, sku, qty):
    cur = conn.cursor()
    cur.execute("INSERT INTO reservations(id, sku, qty) VALUES (%s,%s,%s) ON CONFLICT DO NOTHING", (order_id, sku, qty))
    conn.commit()
    try:
        notify_warehouse(order_id)
    except Exception:
        cur.execute("UPDATE stock SET quantity = quantity + %s WHERE sku = %s", (qty, sku))
        conn.commit()
        raise

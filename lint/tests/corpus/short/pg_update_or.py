# ruff: noqa
# expect file: P11
import psycopg2
from celery import shared_task
@shared_task
def dec(sku, n):
    c = psycopg2.connect("")
    cur = c.cursor()
    q = f"UPDATE stock SET qty = qty - {n} WHERE sku = '{sku}'"
    cur.execute(q)
    c.commit()

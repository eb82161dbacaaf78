# ruff: noqa
# expect file: EO402
import psycopg
import requests
from celery import shared_task


def reserve(conn, sku, n, order):
    conn.execute("INSERT INTO reservations (order_id, sku, n) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (order, sku, n))


def give_back(conn, sku, n):
    conn.execute("UPDATE stock SET free = free + %s WHERE sku = %s", (n, sku))


@shared_task(autoretry_for=(requests.RequestException,))
def fulfil(order, sku, n):
    undo = []
    with psycopg.connect("dbname=x") as conn:
        reserve(conn, sku, n, order)
        undo.append(lambda: give_back(conn, sku, n))
        try:
            requests.put(f"https://carrier.example/parcels/{order}", timeout=5).raise_for_status()
        except requests.RequestException:
            for step in reversed(undo):
                step()
            raise

# ruff: noqa
import psycopg

class OrderService:
    def __init__(self, dsn):
        self.dsn = dsn

    def place(self, order: dict) -> None:
        with psycopg.connect(self.dsn) as conn:
            row = conn.execute(
                "insert into orders (customer, total) values (%(customer)s, %(total)s) returning id", order
            ).fetchone()
            with conn.cursor() as cur:
                cur.executemany("insert into lines (order_id, sku) values (%s, %s)", [(row[0], s) for s in order["skus"]])

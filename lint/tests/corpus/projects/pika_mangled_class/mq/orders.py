# ruff: noqa
# expect file: P11
from .base import Consumer
from .db import engine
from sqlalchemy import text

class OrderConsumer(Consumer):
    queue = "orders"

    def handle(self, message):
        with engine.begin() as conn:
            conn.execute(
                text("UPDATE products SET stock = stock - :n WHERE sku = :sku"),
                {"n": message["quantity"], "sku": message["sku"]},
            )

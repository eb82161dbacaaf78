# ruff: noqa
# expect file: clean
import psycopg
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Order(BaseModel):
    sku: str
    n: int


@app.post("/orders")
def order(order: Order):
    with psycopg.connect("dbname=x") as conn:
        conn.execute("INSERT INTO orders (sku, n) VALUES (%s, %s)", (order.sku, order.n))
        conn.execute("UPDATE stock SET n = n - %s WHERE sku = %s", (order.n, order.sku))
    return {"ok": True}

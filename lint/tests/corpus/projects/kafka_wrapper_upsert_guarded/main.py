# ruff: noqa
# expect file: clean
import json
from lib import Loop
import psycopg
conn = psycopg.connect("")
def save(value):
    d = json.loads(value)
    with conn.transaction():
        conn.execute("INSERT INTO prices (sku, price) VALUES (%s, %s) ON CONFLICT (sku) DO UPDATE SET price = excluded.price", (d["sku"], d["price"]))
Loop("prices", save).forever()

# ruff: noqa
from bus import Bus
import psycopg
conn = psycopg.connect("")
def price(e):
    with conn.transaction():
        conn.execute("UPDATE products SET price = %s WHERE sku = %s", (e["price"], e["sku"]))
bus = Bus()
bus.on("prices", price)
bus.run()

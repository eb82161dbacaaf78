# ruff: noqa
# expect file: clean
import sqlite3, json, pika
conn = sqlite3.connect("a.db", isolation_level=None)
def cb(ch, method, props, body):
    e = json.loads(body)
    conn.execute("BEGIN IMMEDIATE")
    try:
        conn.execute("INSERT INTO processed (id) VALUES (?)", (e["id"],))
        conn.execute("UPDATE a SET n = n + 1")
        conn.execute("COMMIT")
    except sqlite3.IntegrityError:
        conn.execute("ROLLBACK")
    ch.basic_ack(method.delivery_tag)
c = pika.BlockingConnection().channel()
c.basic_consume("q", cb)

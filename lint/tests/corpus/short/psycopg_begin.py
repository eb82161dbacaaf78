# ruff: noqa
# expect file: clean
import pika, psycopg2, json
conn = psycopg2.connect("")
def cb(ch, method, props, body):
    e = json.loads(body)
    cur = conn.cursor()
    try:
        cur.execute("BEGIN")
        cur.execute("INSERT INTO processed (id) VALUES (%s)", (e["id"],))
        cur.execute("INSERT INTO orders (customer) VALUES (%s)", (e["c"],))
        cur.execute("COMMIT")
    except psycopg2.errors.UniqueViolation:
        cur.execute("ROLLBACK")
    ch.basic_ack(method.delivery_tag)
c = pika.BlockingConnection().channel()
c.basic_consume("q", cb)

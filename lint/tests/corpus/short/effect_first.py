# ruff: noqa
# expect file: EO103
import psycopg2, json, pika, requests
conn = psycopg2.connect("")
def handle(ch, method, properties, body):
    evt = json.loads(body)
    requests.post("https://hooks.example/notify", json=evt)
    try:
        with conn, conn.cursor() as c:
            c.execute("INSERT INTO processed_messages (id) VALUES (%s)", (evt["id"],))
    except psycopg2.IntegrityError:
        pass
    ch.basic_ack(method.delivery_tag)
c = pika.BlockingConnection().channel()
c.basic_consume("q", handle)

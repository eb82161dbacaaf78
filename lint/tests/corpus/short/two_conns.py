# ruff: noqa
# expect file: EO102
import psycopg2, json, pika
def handle(ch, method, properties, body):
    evt = json.loads(body)
    dedup = psycopg2.connect("dbname=dedup")
    main = psycopg2.connect("dbname=main")
    with dedup:
        with dedup.cursor() as c:
            c.execute("INSERT INTO processed_messages (id) VALUES (%s) ON CONFLICT DO NOTHING", (evt["id"],))
            if c.rowcount == 0:
                ch.basic_ack(method.delivery_tag)
                return
    with main:
        with main.cursor() as c:
            c.execute("UPDATE wallets SET credits = credits + %s WHERE user_id = %s", (evt["credits"], evt["user"]))
    ch.basic_ack(method.delivery_tag)
c = pika.BlockingConnection().channel()
c.basic_consume("q", handle)

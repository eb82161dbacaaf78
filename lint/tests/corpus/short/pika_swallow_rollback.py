# ruff: noqa
# expect file: EO202
import pika, json, logging
import psycopg2
conn = psycopg2.connect("")
def cb(ch, method, props, body):
    try:
        data = json.loads(body)
        with conn.cursor() as cur:
            cur.execute("UPDATE orders SET status=%s WHERE id=%s", (data["status"], data["id"]))
        conn.commit()
    except Exception as e:
        logging.error("error: %s", e)
        conn.rollback()
    ch.basic_ack(delivery_tag=method.delivery_tag)
channel = pika.BlockingConnection().channel()
channel.basic_consume(queue="q", on_message_callback=cb)

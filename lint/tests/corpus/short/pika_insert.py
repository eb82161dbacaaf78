# ruff: noqa
# expect file: P11
import pika, sqlite3, json
conn = sqlite3.connect("app.db")
def callback(ch, method, props, body):
    d = json.loads(body)
    conn.execute("INSERT INTO orders(customer, total) VALUES (?, ?)", (d["customer"], d["total"]))
    conn.commit()
    ch.basic_ack(method.delivery_tag)
connection = pika.BlockingConnection(pika.ConnectionParameters('localhost'))
channel = connection.channel()
channel.basic_consume(queue='orders', on_message_callback=callback)
channel.start_consuming()

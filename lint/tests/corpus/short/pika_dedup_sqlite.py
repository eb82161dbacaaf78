# ruff: noqa
# expect file: clean
import pika, sqlite3, json
conn = sqlite3.connect("app.db")
conn.execute("CREATE TABLE IF NOT EXISTS processed (message_id TEXT PRIMARY KEY)")
def callback(ch, method, props, body):
    d = json.loads(body)
    try:
        with conn:
            conn.execute("INSERT INTO processed(message_id) VALUES (?)", (props.message_id,))
            conn.execute("INSERT INTO orders(customer, total) VALUES (?, ?)", (d["customer"], d["total"]))
    except sqlite3.IntegrityError:
        pass
    ch.basic_ack(method.delivery_tag)
channel = pika.BlockingConnection().channel()
channel.basic_consume(queue='orders', on_message_callback=callback)

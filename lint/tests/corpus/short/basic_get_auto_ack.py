# ruff: noqa
# expect file: EO201
import pika
def main():
    connection = pika.BlockingConnection(pika.ConnectionParameters(host="localhost"))
    channel = connection.channel()
    channel.queue_declare(queue="tasks", durable=True)
    while True:
        method, header, body = channel.basic_get(queue="tasks", auto_ack=True)
        if method:
            handle(body)
def handle(body):
    with open("/data/" + body.decode(), "w") as f:
        f.write("x")
    import requests
    requests.put("https://x/y", data=body)

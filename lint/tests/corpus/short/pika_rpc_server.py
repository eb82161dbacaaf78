# ruff: noqa
# expect file: clean
import pika

connection = pika.BlockingConnection(pika.ConnectionParameters(host="localhost"))
channel = connection.channel()


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def on_request(ch, method, props, body):
    response = fib(int(body))
    ch.basic_publish(
        exchange="",
        routing_key=props.reply_to,
        properties=pika.BasicProperties(correlation_id=props.correlation_id),
        body=str(response),
    )
    ch.basic_ack(delivery_tag=method.delivery_tag)


channel.basic_consume(queue="rpc_queue", on_message_callback=on_request)
channel.start_consuming()

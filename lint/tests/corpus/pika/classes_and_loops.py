# ruff: noqa
"""A consumer as an object, a closure, a generator loop."""

import json
import smtplib

import pika


class Mailer:
    def __init__(self, url):
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.smtp = smtplib.SMTP("localhost")

    def run(self):
        self.channel.basic_consume(queue="mail", on_message_callback=self.on_mail)
        self.channel.basic_consume(queue="log", on_message_callback=self.on_log)
        self.channel.start_consuming()

    def on_mail(self, ch, method, properties, body):  # expect: P11
        self._deliver(json.loads(body))
        ch.basic_ack(method.delivery_tag)

    def _deliver(self, mail):
        self.smtp.sendmail("shop@example.com", mail["to"], mail["text"])

    def on_log(self, ch, method, properties, body):  # expect: P11
        with open("/var/log/orders.log", "a") as file:
            file.write(body.decode() + "\n")
        ch.basic_ack(method.delivery_tag)


def start(connection):
    channel = connection.channel()
    forwarded = pika.BlockingConnection().channel()

    def relay(ch, method, properties, body):  # expect: P11
        forwarded.basic_publish(exchange="", routing_key="next", body=body)
        ch.basic_ack(delivery_tag=method.delivery_tag)

    def relay_with_id(ch, method, properties, body):  # expect: clean
        forwarded.basic_publish(
            exchange="",
            routing_key="next",
            body=body,
            properties=pika.BasicProperties(message_id=properties.message_id),
        )
        ch.basic_ack(delivery_tag=method.delivery_tag)

    channel.basic_consume("in", relay)
    channel.basic_consume("in2", on_message_callback=relay_with_id)
    channel.start_consuming()


def drain(url):  # expect: P11
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    smtp = smtplib.SMTP("localhost")
    for method, properties, body in channel.consume("mail", inactivity_timeout=5):
        if method is None:
            break
        mail = json.loads(body)
        smtp.sendmail("shop@example.com", mail["to"], mail["text"])
        channel.basic_ack(method.delivery_tag)

# ruff: noqa
# expect file: P11
import json
import os

from azure.servicebus import ServiceBusClient, ServiceBusReceiver
from azure.communication.email import EmailClient

mailer = EmailClient.from_connection_string(os.environ["ACS"])


class Processor:
    def __init__(self, connection: str, queue: str) -> None:
        self.client = ServiceBusClient.from_connection_string(connection)
        self.queue = queue

    def run_forever(self) -> None:
        with self.client, self.client.get_queue_receiver(queue_name=self.queue, max_wait_time=30) as receiver:
            for message in receiver:
                self._handle(receiver, message)

    def _handle(self, receiver: ServiceBusReceiver, message) -> None:
        body = json.loads(str(message))
        poller = mailer.begin_send({"senderAddress": "a@b.c", "recipients": {"to": [{"address": body["to"]}]}, "content": {"subject": "hi", "plainText": "x"}})
        poller.result()
        receiver.complete_message(message)

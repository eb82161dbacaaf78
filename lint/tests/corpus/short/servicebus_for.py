# ruff: noqa
# expect file: P11
import json

from azure.servicebus import ServiceBusClient
from azure.communication.email import EmailClient

mail = EmailClient.from_connection_string("x")


def main():
    with ServiceBusClient.from_connection_string("x") as client:
        with client.get_queue_receiver("welcome") as receiver:
            for message in receiver:
                user = json.loads(str(message))
                mail.begin_send({"recipients": {"to": [{"address": user["email"]}]}})
                receiver.complete_message(message)

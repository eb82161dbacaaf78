# ruff: noqa
"""Azure Service Bus."""

import json
import logging

import azure.functions as func
import pyodbc
from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode

log = logging.getLogger(__name__)
app = func.FunctionApp()
CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=x;SharedAccessKey=y"


def receive():  # expect: P11
    db = pyodbc.connect("DSN=shop")
    with ServiceBusClient.from_connection_string(CONNECTION) as client:
        with client.get_queue_receiver("orders") as receiver:
            for message in receiver:
                order = json.loads(str(message))
                cursor = db.cursor()
                cursor.execute("INSERT INTO orders_log (order_id, total) VALUES (?, ?)", order["id"], order["total"])
                db.commit()
                receiver.complete_message(message)


def receive_and_delete():  # expect: EO201
    db = pyodbc.connect("DSN=shop")
    client = ServiceBusClient.from_connection_string(CONNECTION)
    receiver = client.get_queue_receiver("orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    with receiver:
        for message in receiver.receive_messages(max_message_count=10):
            order = json.loads(str(message))
            db.cursor().execute("UPDATE orders SET state = ? WHERE id = ?", order["state"], order["id"])
            db.commit()


def receive_merge():  # expect: clean
    db = pyodbc.connect("DSN=shop")
    client = ServiceBusClient.from_connection_string(CONNECTION)
    with client.get_subscription_receiver("orders", "billing") as receiver:
        for message in receiver.receive_messages(max_message_count=10, max_wait_time=5):
            order = json.loads(str(message))
            db.cursor().execute(
                """
                MERGE INTO orders AS t USING (SELECT ? AS id, ? AS state) AS s ON t.id = s.id
                WHEN MATCHED THEN UPDATE SET state = s.state
                WHEN NOT MATCHED THEN INSERT (id, state) VALUES (s.id, s.state);
                """,
                order["id"],
                order["state"],
            )
            db.commit()
            receiver.complete_message(message)


def keyed_by_lock_token():  # expect: EO301
    db = pyodbc.connect("DSN=shop")
    client = ServiceBusClient.from_connection_string(CONNECTION)
    with client.get_queue_receiver("orders") as receiver:
        for message in receiver:
            cursor = db.cursor()
            cursor.execute("INSERT INTO processed (id) VALUES (?)", str(message.lock_token))
            cursor.execute("UPDATE totals SET orders = orders + 1")
            db.commit()
            receiver.complete_message(message)


@app.service_bus_queue_trigger(arg_name="msg", queue_name="orders", connection="SB")
def function(msg: func.ServiceBusMessage):  # expect: P11
    order = json.loads(msg.get_body().decode())
    db = pyodbc.connect("DSN=shop")
    db.cursor().execute("UPDATE totals SET orders = orders + 1 WHERE day = ?", order["day"])
    db.commit()

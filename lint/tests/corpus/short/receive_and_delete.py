# ruff: noqa
# expect file: EO201
import json

import psycopg
from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode

with ServiceBusClient.from_connection_string("x") as client:
    with client.get_queue_receiver("names", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        for message in receiver:
            data = json.loads(str(message))
            with psycopg.connect("dbname=x") as conn:
                conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))

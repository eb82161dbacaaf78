# ruff: noqa
# expect file: clean
import json
from azure.cosmos import CosmosClient, exceptions
from azure.servicebus import ServiceBusClient
class Orders:
    def __init__(self, client: CosmosClient):
        self.c = client.get_database_client("d").get_container_client("orders")
    def add(self, order):
        try:
            self.c.create_item({"id": order["order_id"], "total": order["total"]})
        except exceptions.CosmosResourceExistsError:
            pass
def run(orders: Orders):
    with ServiceBusClient.from_connection_string("x").get_queue_receiver("q") as receiver:
        for m in receiver:
            orders.add(json.loads(str(m)))
            receiver.complete_message(m)

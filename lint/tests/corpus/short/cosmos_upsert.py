# ruff: noqa
# expect file: clean
import json
from azure.servicebus import ServiceBusClient
from azure.cosmos import CosmosClient
def run():
    client = ServiceBusClient.from_connection_string("c")
    cosmos = CosmosClient("u").get_database_client("d").get_container_client("c")
    with client.get_queue_receiver("q") as r:
        for m in r:
            cosmos.upsert_item(json.loads(str(m)))
            r.complete_message(m)

# ruff: noqa
from azure.cosmos.aio import CosmosClient
import uuid

class OrderProcessor:
    def __init__(self, cosmos: CosmosClient):
        self.container = cosmos.get_database_client("shop").get_container_client("orders")

    async def process(self, order):
        await self.container.create_item({"id": str(uuid.uuid4()), **order})

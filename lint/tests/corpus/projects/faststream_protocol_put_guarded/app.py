# ruff: noqa
# expect file: clean
from faststream.rabbit import RabbitBroker
from faststream import Depends
from ports import Catalog
from http_catalog import HttpCatalog
broker = RabbitBroker()
def catalog() -> Catalog:
    return HttpCatalog()
@broker.subscriber("products")
async def product(event: dict, to: Catalog = Depends(catalog)):
    await to.publish_product(event["sku"], event)

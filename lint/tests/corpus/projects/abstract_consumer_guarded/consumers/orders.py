# ruff: noqa
# expect file: clean
from consumers.base import IdempotentConsumer
from shop.models import OrderLine


class OrdersConsumer(IdempotentConsumer):
    topic = "orders"

    def handle(self, event):
        for line in event["lines"]:
            OrderLine.objects.create(sku=line["sku"], quantity=line["quantity"])

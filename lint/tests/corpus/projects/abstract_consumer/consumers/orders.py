# ruff: noqa
# expect file: P11
from consumers.base import BaseConsumer
from shop.models import OrderLine


class OrdersConsumer(BaseConsumer):
    topic = "orders"

    def handle(self, event):
        for line in event["lines"]:
            OrderLine.objects.create(sku=line["sku"], quantity=line["quantity"])

# ruff: noqa
# expect file: clean
import json, pika
from django.core.management.base import BaseCommand
from models import Stock
class Command(BaseCommand):
    def handle(self, *args, **options):
        ch = pika.BlockingConnection().channel()
        ch.basic_consume("stock", self.on)
        ch.start_consuming()
    def on(self, ch, method, props, body):
        d = json.loads(body)
        Stock.objects.set_level(d["sku"], d["level"])
        ch.basic_ack(method.delivery_tag)

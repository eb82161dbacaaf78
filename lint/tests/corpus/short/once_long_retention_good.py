# ruff: noqa
# expect file: clean
import effectonce as eo
import requests
from celery import shared_task

store = eo.connect("redis://r/0")


@shared_task(bind=True, max_retries=20, default_retry_delay=3600)
@eo.once(store, key="order_id", retention="30d")
def order_parcel(self, order_id):
    requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5)

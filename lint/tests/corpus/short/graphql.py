# ruff: noqa
# expect file: clean
from celery import shared_task
import requests
@shared_task
def q(sku):
    r = requests.post("https://shop.example/graphql", json={"query": "{ product { id } }"})
    return r.json()

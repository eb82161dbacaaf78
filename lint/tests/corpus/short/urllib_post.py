# ruff: noqa
# expect file: P11
import json
import urllib.request

from celery import shared_task


@shared_task
def order_taxi(ride):
    request = urllib.request.Request("https://taxi.example/rides", data=json.dumps(ride).encode(), method="POST")
    urllib.request.urlopen(request, timeout=5)

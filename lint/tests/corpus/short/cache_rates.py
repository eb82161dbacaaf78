# ruff: noqa
# expect file: clean
from celery import shared_task
from django.core.cache import cache
import requests
@shared_task
def refresh_rates():
    rates = requests.get("https://rates.example/latest").json()
    cache.set("rates", rates, timeout=3600)
    for code, value in rates.items():
        cache.set(f"rate:{code}", value)

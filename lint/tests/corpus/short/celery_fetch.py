# ruff: noqa
# expect file: clean
from celery import shared_task
import requests
@shared_task(bind=True, autoretry_for=(requests.RequestException,), retry_kwargs={"max_retries": 5}, retry_backoff=True)
def fetch(self, url):
    r = requests.get(url, timeout=5)
    r.raise_for_status()
    return r.json()

# ruff: noqa
# expect file: P11
from functools import lru_cache

from celery import shared_task
from twilio.rest import Client


@lru_cache(maxsize=1)
def client() -> Client:
    return Client()


@shared_task
def remind(phone):
    client().messages.create(to=phone, from_="+1", body="x")

# ruff: noqa
# expect file: clean
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError
from celery import shared_task
import requests
db = MongoClient()["shop"]
@shared_task
def view(event_id, price):
    try:
        db.processed_events.insert_one({"_id": event_id})
    except DuplicateKeyError:
        return
    requests.post("https://a.example/prices", json={"p": price})

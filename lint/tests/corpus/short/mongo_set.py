# ruff: noqa
# expect file: clean
from pymongo import MongoClient
from celery import shared_task
db = MongoClient()["shop"]
@shared_task
def view(product_id, price):
    db.products.update_one({"_id": product_id}, {"$set": {"price": price}}, upsert=True)

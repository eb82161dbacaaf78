# ruff: noqa
# expect file: P11
from pymongo import MongoClient
from celery import shared_task
db = MongoClient()["shop"]
@shared_task
def view(product_id):
    db.products.update_one({"_id": product_id}, {"$inc": {"views": 1}})

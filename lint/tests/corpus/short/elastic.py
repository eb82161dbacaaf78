# ruff: noqa
# expect file: clean
from celery import shared_task
from elasticsearch import Elasticsearch
es = Elasticsearch()
@shared_task
def index(doc_id, body):
    es.index(index="docs", id=doc_id, document=body)

# ruff: noqa
# expect file: clean
import requests
from celery import shared_task

from .models import Doc


@shared_task
def embed(doc_id):
    doc = Doc.objects.get(pk=doc_id)
    vector = requests.post("https://api.openai.com/v1/embeddings", json={"input": doc.text}, timeout=30).json()
    Doc.objects.filter(pk=doc_id).update(vector=vector["data"])

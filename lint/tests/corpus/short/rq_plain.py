# ruff: noqa
# expect file: P11
from redis import Redis
from rq import Queue
import requests
def notify(url, data):
    requests.post(url, json=data)
q = Queue(connection=Redis())
q.enqueue(notify, "http://x", {"a": 1})

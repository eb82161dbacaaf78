# ruff: noqa
# expect file: clean
import redis
import requests
from celery import shared_task

r = redis.Redis()


@shared_task
def push(event_id, body):
    n = r.incr(f"attempt:{event_id}")
    r.expire(f"attempt:{event_id}", 1296000)
    if n > 1:
        return
    requests.post("https://x.example/y", json=body, timeout=5)

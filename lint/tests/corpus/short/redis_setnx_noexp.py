# ruff: noqa
# expect file: EO105
import redis, requests
from celery import shared_task
r = redis.Redis()
@shared_task
def x(event_id):
    if not r.setnx(f"evt:{event_id}", 1):
        return
    requests.post("https://a.example/b", json={"e": event_id})

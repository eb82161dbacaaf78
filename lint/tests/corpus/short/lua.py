# ruff: noqa
# expect file: clean
import redis, requests
from celery import shared_task
r = redis.Redis()
CLAIM = r.register_script("return redis.call('SET', KEYS[1], 1, 'NX', 'EX', 60)")
@shared_task
def once(event_id):
    if not CLAIM(keys=[event_id]):
        return
    requests.post("https://a.example/notify", json={"e": event_id})

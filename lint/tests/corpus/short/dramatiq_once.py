# ruff: noqa
# expect file: clean
import dramatiq, redis, requests
r = redis.Redis()
@dramatiq.actor
def push(event_id, payload):
    if not r.set(f"push:{event_id}", "1", nx=True, ex=604800):
        return
    requests.post("https://push.example.com/send", json=payload)

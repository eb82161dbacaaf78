# ruff: noqa
# expect file: EO106
import redis, requests
from celery import Celery
r = redis.Redis()
app = Celery("x", broker="redis://")
app.conf.broker_transport_options = {"visibility_timeout": 43200}
@app.task(acks_late=True)
def x(event_id):
    if not r.set(f"evt:{event_id}", 1, nx=True, ex=60):
        return
    requests.post("https://a.example/b", json={"e": event_id})

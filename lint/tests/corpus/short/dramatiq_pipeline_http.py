# ruff: noqa
# expect file: P11
import dramatiq
import httpx
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

backend = RedisBackend()
MUTEX = ConcurrentRateLimiter(backend, "crm", limit=1)
client = httpx.Client(base_url="https://crm.example/api")


@dramatiq.actor(queue_name="crm", max_retries=10, min_backoff=1000)
def add_lead(lead):
    with MUTEX.acquire():
        response = client.post("/leads", json=lead)
        response.raise_for_status()

# ruff: noqa
import redis
r = redis.Redis()
class Dedup:
    def __init__(self, prefix, ttl=14 * 24 * 3600):
        self.prefix, self.ttl = prefix, ttl
    def first(self, key):
        return bool(r.set(f"{self.prefix}:{key}", "1", nx=True, ex=self.ttl))
    def forget(self, key):
        r.delete(f"{self.prefix}:{key}")

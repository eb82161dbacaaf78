# ruff: noqa
import httpx
class Api:
    def __init__(self, base):
        self._c = httpx.Client(base_url=base)
    def _post(self, path, body, key):
        return self._c.post(path, json=body, headers={"Idempotency-Key": key}).raise_for_status()
    def charge(self, order_id, cents):
        return self._post("/charges", {"cents": cents}, f"charge-{order_id}")

# ruff: noqa
# expect file: clean
import requests
from rq import Queue
from redis import Redis


class Api:
    def __init__(self, base):
        self.base = base
        self.session = requests.Session()

    def _call(self, method, path, **kw):
        response = self.session.request(method, self.base + path, timeout=5, **kw)
        response.raise_for_status()

    def set_flag(self, user, value):
        self._call("PUT", f"/users/{user}/flag", json={"value": value})


def flag(user, value):
    Api("https://desk.example").set_flag(user, value)


Queue(connection=Redis()).enqueue(flag, "u", True)

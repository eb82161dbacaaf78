# ruff: noqa
# expect file: P11
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
        return response.json()

    def create_ticket(self, subject):
        return self._call("POST", "/tickets", json={"subject": subject})


def open_ticket(subject):
    Api("https://desk.example").create_ticket(subject)


Queue(connection=Redis()).enqueue(open_ticket, "help")

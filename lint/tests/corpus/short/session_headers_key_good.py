# ruff: noqa
# expect file: clean
import requests
from celery import shared_task


class Bank:
    def __init__(self):
        self.http = requests.Session()

    def send(self, transfer):
        headers = self._headers(transfer)
        self.http.post("https://bank.example/transfers", json=transfer, headers=headers, timeout=5)

    def _headers(self, transfer):
        headers = {"Accept": "application/json"}
        headers["Idempotency-Key"] = transfer["id"]
        return headers


@shared_task
def pay(transfer):
    Bank().send(transfer)

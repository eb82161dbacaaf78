# ruff: noqa
# expect file: P11
import requests
from celery import Celery

app = Celery("x")


class Crm:
    url = "https://crm.example"
    http = requests.Session()

    @classmethod
    def note(cls, text):
        cls.http.post(cls.url + "/notes", json={"text": text}, timeout=5)


class Tasks:
    crm = Crm

    @staticmethod
    @app.task(acks_late=True)
    def called(customer):
        Tasks.crm.note(f"called {customer}")

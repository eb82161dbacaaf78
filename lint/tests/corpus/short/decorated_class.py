# ruff: noqa
# expect file: P11
from celery import Celery
import requests
app = Celery()
class Api:
    def __init__(self): self.s = requests.Session()
    def push(self, d): return self.s.post("https://a.example/x", json=d)
api = Api()
@app.task
def t(d):
    api.push(d)

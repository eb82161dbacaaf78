# ruff: noqa
# expect file: clean
from celery import Celery
app = Celery("a")
@app.task
def add(x, y):
    return x + y

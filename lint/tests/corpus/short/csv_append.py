# ruff: noqa
# expect file: P11
import csv
from pathlib import Path

from celery import Celery

app = Celery("x")


class Journal:
    def __init__(self, path):
        self.path = Path(path)

    def write(self, row):
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)


journal = Journal("/var/log/sales.csv")


@app.task(acks_late=True)
def sold(till, cents):
    journal.write([till, cents])

# ruff: noqa
import queue
import threading

import requests

_jobs = queue.Queue()


def submit(job):
    _jobs.put(job)


def _run():
    while True:
        job = _jobs.get()
        requests.post("https://carrier.example/parcels", json=job, timeout=10)


def start():
    threading.Thread(target=_run, daemon=True).start()

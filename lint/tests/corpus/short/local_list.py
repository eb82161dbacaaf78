# ruff: noqa
# expect file: clean
from celery import shared_task
import requests
@shared_task
def collect(urls):
    results = []
    totals = {}
    for u in urls:
        resp = requests.get(u)
        results.append(resp.json())
        totals[u] = totals.get(u, 0) + 1
    return {"n": len(results), "totals": totals}

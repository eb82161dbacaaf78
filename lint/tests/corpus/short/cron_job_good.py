# ruff: noqa
# expect file: clean
import schedule
import requests


def report():
    requests.post("https://hooks.example/report", json={})


schedule.every().day.do(report)
while True:
    schedule.run_pending()

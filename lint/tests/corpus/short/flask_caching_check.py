# ruff: noqa
# expect file: EO101, EO103
import requests
from flask import Flask, request
from flask_caching import Cache

app = Flask(__name__)
cache = Cache(app)


@app.post("/webhook/parcel")
def parcel():
    event = request.get_json()
    if cache.get("evt:" + event["id"]):
        return "", 200
    requests.post("https://crm.example/notes", json=event, timeout=5)
    cache.set("evt:" + event["id"], True, timeout=3600)
    return "", 200

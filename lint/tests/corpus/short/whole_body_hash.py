# ruff: noqa
# expect file: EO302
import hashlib
import json

import redis
import requests
from flask import Flask, request

app = Flask(__name__)
r = redis.Redis()


def fingerprint(payload):
    return hashlib.blake2b(json.dumps(payload, sort_keys=True).encode()).hexdigest()


@app.post("/webhooks/orders")
def order():
    body = request.get_json()
    if not r.set(f"seen:{fingerprint(body)}", 1, nx=True, ex=1209600):
        return "", 200
    requests.post("https://erp.example/orders", json=body, timeout=5)
    return "", 201

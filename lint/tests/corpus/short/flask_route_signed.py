# ruff: noqa
# expect file: P11
import hashlib
import hmac
import os

import psycopg
from flask import Flask, abort, request

app = Flask(__name__)


def genuine(body, given):
    want = hmac.new(os.environb[b"SECRET"], body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(want, given)


@app.post("/partners/acme")
def acme():
    if not genuine(request.data, request.headers.get("X-Acme-Signature", "")):
        abort(401)
    event = request.json
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE purse SET cents = cents + %s WHERE id = %s", (event["cents"], event["purse"]))
    return "", 204

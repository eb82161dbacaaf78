# ruff: noqa
# expect file: EO202
import logging

import psycopg
from flask import Flask, request

app = Flask(__name__)


@app.route("/hooks/names", methods=["POST"])
def names():
    data = request.json
    try:
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE users SET name = %s WHERE id = %s", (data["name"], data["id"]))
    except Exception as exc:
        logging.error("failed %s", exc)
    return {"ok": True}, 200

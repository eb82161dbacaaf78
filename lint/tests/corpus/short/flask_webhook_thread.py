# ruff: noqa
# expect file: EO201
import threading

import psycopg2
from flask import Flask, request

app = Flask(__name__)


def settle(event):
    conn = psycopg2.connect("dbname=shop")
    with conn, conn.cursor() as cur:
        cur.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (event["order_id"],))


@app.route("/webhook/stripe", methods=["POST"])
def stripe_hook():
    event = request.get_json()
    threading.Thread(target=settle, args=(event,)).start()
    return "", 200

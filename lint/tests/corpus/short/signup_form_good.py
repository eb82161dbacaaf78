# ruff: noqa
# expect file: clean
from flask import Flask, request
import psycopg

app = Flask(__name__)


@app.post("/signup")
def signup():
    with psycopg.connect("dbname=x") as conn:
        known = conn.execute("SELECT 1 FROM members WHERE email = %s", (request.form["email"],)).fetchone()
        if known:
            return "taken", 409
        conn.execute("INSERT INTO members (email) VALUES (%s)", (request.form["email"],))
    return "", 201

# ruff: noqa
# expect file: clean
from fastapi import FastAPI, HTTPException, Request
import redis
import psycopg

app = FastAPI()
r = redis.Redis()


@app.post("/comments")
def comment(request: Request, body: dict):
    if not r.set(f"rate:{request.client.host}", 1, nx=True, ex=5):
        raise HTTPException(429)
    with psycopg.connect("dbname=x") as conn:
        conn.execute("INSERT INTO comments (text) VALUES (%s)", (body["text"],))

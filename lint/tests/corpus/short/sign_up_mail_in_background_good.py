# ruff: noqa
# expect file: clean
import psycopg
from fastapi import BackgroundTasks, FastAPI

app = FastAPI()


def welcome(user):
    with psycopg.connect("dbname=shop") as conn:
        conn.execute("UPDATE users SET greeted = true WHERE id = %s", (user["id"],))


@app.post("/users")
async def sign_up(user: dict, background: BackgroundTasks):
    background.add_task(welcome, user)
    return {"ok": True}

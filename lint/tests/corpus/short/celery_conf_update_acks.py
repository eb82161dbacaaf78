# ruff: noqa
# expect file: EO201
import psycopg
from celery import Celery

app = Celery("x")
app.conf.update(task_acks_late=False, task_default_queue="names")


@app.task
def rename(user, name):
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE users SET name = %s WHERE id = %s", (name, user))

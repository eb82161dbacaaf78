"""Work handed over inside the process: an ack that does not wait for it is an ack before the commit (F05)."""

from __future__ import annotations

import pytest

from effectonce_lint.findings import Finding
from effectonce_lint.python.analysis import check_module
from effectonce_lint.python.project import Project

QUEUED = """\
import json
import queue
import threading

import pika
import psycopg

jobs = queue.Queue()


def work():
    conn = psycopg.connect("dbname=shop")
    while True:
        job = jobs.get()
        conn.execute("UPDATE users SET name = %s WHERE id = %s", (job["name"], job["id"]))
        conn.commit()
        jobs.task_done()


def on_message(channel, method, properties, body):
    jobs.put(json.loads(body))
    channel.basic_ack(method.delivery_tag)


threading.Thread(target=work).start()
channel = pika.BlockingConnection().channel()
channel.basic_consume("users", on_message)
"""
WEBHOOK = """\
import psycopg
from fastapi import BackgroundTasks, FastAPI

app = FastAPI()


def settle(event):
    with psycopg.connect("dbname=shop") as conn:
        conn.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (event["id"],))


@app.post("/webhooks/payments")
async def paid(event: dict, background: BackgroundTasks):
    background.add_task(settle, event)
    return {}
"""


def found(text: str) -> list[Finding]:
    project = Project()
    return check_module(project, project.add("/consumer.py", text.encode())).findings


def line(text: str, part: str) -> int:
    return next(number for number, each in enumerate(text.splitlines(), 1) if part in each)


def test_a_finding_shows_the_ack_the_queue_and_the_work() -> None:
    (finding,) = found(QUEUED)
    assert (finding.rule, finding.place.line) == ("EO201", line(QUEUED, "basic_ack"))
    assert [each.place.line for each in finding.labels] == [line(QUEUED, "jobs.put"), line(QUEUED, "UPDATE users")]
    assert finding.labels[0].text == "handed over here"


def test_of_a_webhook_it_shows_where_the_work_is_left_behind() -> None:
    (finding,) = found(WEBHOOK)
    assert (finding.rule, finding.place.line) == ("EO201", line(WEBHOOK, "add_task"))
    assert "answers before this work is done" in finding.message


@pytest.mark.parametrize(
    ("this", "that"),
    [
        ("    channel.basic_ack", "    jobs.join()\n    channel.basic_ack"),
        ("queue.Queue()", "[]"),
        ("jobs.get()", "other.get()"),
        ("jobs.put(json.loads(body))", "jobs.put(None)"),
        ("jobs.put(json.loads(body))", "print(body)"),
        ("    channel.basic_ack(method.delivery_tag)\n", ""),
        ("import queue\n", "from shop import queue\n"),
    ],
)
def test_what_is_waited_for_or_no_queue_or_never_taken_or_never_acked_is_no_finding(this: str, that: str) -> None:
    assert this in QUEUED
    assert found(QUEUED.replace(this, that, 1)) == []


def test_an_error_that_the_worker_catches_is_not_the_consumers() -> None:
    work = line(QUEUED, "conn.execute")
    lines = QUEUED.splitlines()
    lines[work - 1 : work + 1] = [
        "        try:",
        *(f"    {each}" for each in lines[work - 1 : work + 1]),
        "        except Exception:",
        "            print(job)",
    ]
    assert [each.rule for each in found("\n".join(lines))] == ["EO201"]

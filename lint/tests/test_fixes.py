"""Fixes change what can be fixed mechanically, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .conftest import Lint

HEAD = """\
import pika
import psycopg2
import redis
import requests
import stripe
from celery import Celery
from confluent_kafka import Consumer

app = Celery()
r = redis.Redis()
channel = pika.BlockingConnection().channel()


"""

TASK = """\
@app.task(acks_late=False)
def f(order_id):
    requests.put(f"https://erp/{order_id}")
"""
CALLBACK = """\
def f(ch, method, props, body):
    requests.put("https://erp", data=body)


channel.basic_consume("q", f, auto_ack=True)
"""
LOOP = """\
def f():
    c = Consumer({"group.id": "g", "enable.auto.commit": "true"})
    while True:
        m = c.poll()
        requests.put("https://erp", data=m.value())
        c.commit(m)
"""
CLAIM = """\
@app.task
def f(message_id):
    if not r.set(f"seen:{message_id}", 1, ex=1296000):
        return
    requests.post("https://erp", json={})
"""
WRAPPED_CLAIM = """\
@app.task
def f(message_id):
    if not r.set(
        f"seen:{message_id}",
        1,
        nx=True,
    ):
        return
    requests.post("https://erp", json={})
"""
CHARGE = """\
@app.task
def f(payment_id, amount):
    stripe.Charge.create(amount=amount, currency="eur")
"""
GET_AND_SET = """\
@app.task
def f(message_id):
    if r.get(message_id):
        return
    r.set(message_id, 1, ex=1296000)
    requests.post("https://erp", json={})
"""


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


MENDED = {
    "acks_late": ("EO201", TASK, changed(TASK, ("=False", "=True"))),
    "auto_ack, with the ack that is then needed": (
        "EO201",
        CALLBACK,
        changed(
            CALLBACK,
            ("auto_ack=True", "auto_ack=False"),
            ("body)\n\n", "body)\n    ch.basic_ack(method.delivery_tag)\n\n"),
        ),
    ),
    "enable.auto.commit": ("EO201", LOOP, changed(LOOP, ('"true"', '"false"'))),
    "nx": ("EO105", CLAIM, changed(CLAIM, ("ex=1296000", "ex=1296000, nx=True"))),
    "ex": ("EO105", WRAPPED_CLAIM, changed(WRAPPED_CLAIM, ("nx=True", "nx=True, ex=1296000"))),
    "idempotency_key": ("EO303", CHARGE, changed(CHARGE, ('"eur"', '"eur", idempotency_key=f"charge:{payment_id}"'))),
}

LEFT = {
    "auto_ack where a callback has several ways out": (
        "EO201",
        changed(CALLBACK, ("    requests", "    if not body:\n        return\n    requests")),
    ),
    "auto-commit where nobody commits": ("EO201", changed(LOOP, ("        c.commit(m)\n", ""))),
    "a key where no id is at hand": ("EO303", changed(CHARGE, ("payment_id, ", ""))),
    "get and set": ("EO105", GET_AND_SET),
}


@pytest.mark.parametrize(("rule", "before", "after"), MENDED.values(), ids=MENDED)
def test_it_is_mended(lint: Lint, folder: Path, rule: str, before: str, after: str) -> None:
    path = folder / "consumer.py"
    path.write_text(HEAD + before)
    assert rule in lint("--all", "--output-format", "concise", "--no-cache").rules()
    shown = lint("--all", "--diff", "--no-cache", "--select", rule)
    assert shown.code == 1
    assert path.read_text() == HEAD + before, "--diff changes nothing"
    assert "\n+" in shown.out
    mended = lint("--all", "--fix", "--no-cache", "--select", rule)
    assert path.read_text() == HEAD + after
    ast.parse(path.read_text())
    assert mended.code == 0
    assert mended.out.startswith("Fixed 1 problem in 1 file.\nAll clear.\n")
    again = lint("--all", "--fix", "--no-cache", "--select", rule)
    assert again.out.startswith("All clear.\n")
    assert path.read_text() == HEAD + after


@pytest.mark.parametrize(("rule", "text"), LEFT.values(), ids=LEFT)
def test_what_a_machine_cannot_know_is_left_to_people(lint: Lint, folder: Path, rule: str, text: str) -> None:
    (folder / "consumer.py").write_text(HEAD + text)
    done = lint("--all", "--fix", "--output-format", "concise", "--no-cache")
    assert rule in done.rules()
    assert (folder / "consumer.py").read_text() == HEAD + text


def test_a_file_keeps_its_line_ends_its_encoding_and_its_mode(lint: Lint, folder: Path) -> None:
    path = folder / "consumer.py"
    text = "# -*- coding: latin-1 -*-\r\n# \u00e9\r\n" + (HEAD + TASK).replace("\n", "\r\n")
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o750)
    assert lint("--all", "--fix", "--no-cache").code == 0
    assert path.read_bytes().decode("latin-1") == text.replace("acks_late=False", "acks_late=True")
    assert path.stat().st_mode & 0o777 == 0o750
    assert [each.name for each in folder.iterdir() if "effectonce-" in each.name] == []


def test_the_diff_can_be_applied(lint: Lint, folder: Path) -> None:
    (folder / "consumer.py").write_text(HEAD + TASK.rstrip("\n"))
    diff = lint("--all", "--diff", "--no-cache").out
    assert diff.startswith("--- a/consumer.py\n+++ b/consumer.py\n@@ ")
    assert "\\ No newline at end of file\n" in diff


UNUSUAL = {
    "after a form feed, which ends a page and no line": ("utf-8", "\x0c\n" + CHARGE),
    "behind a letter that takes two bytes": (
        "utf-8",
        changed(CHARGE, ("(amount=amount", '(description="caf\u00e9 \u2028", amount=amount')),
    ),
    "behind one that takes two in UTF-8, in a file that is not": (
        "latin-1",
        changed(CHARGE, ("(amount=amount", '(description="caf\u00e9", amount=amount')),
    ),
}


@pytest.mark.parametrize(("encoding", "text"), UNUSUAL.values(), ids=UNUSUAL)
def test_an_edit_lands_where_it_belongs(lint: Lint, folder: Path, encoding: str, text: str) -> None:
    path = folder / "consumer.py"
    text = f"# -*- coding: {encoding} -*-\n{HEAD}{text}"
    path.write_bytes(text.encode(encoding))
    lint("--all", "--fix", "--no-cache", "--select", "EO303")
    assert path.read_bytes().decode(encoding) == changed(
        text, ('"eur"', '"eur", idempotency_key=f"charge:{payment_id}"')
    )


def test_an_edit_that_would_break_the_file_is_not_made_and_the_others_are(lint: Lint, folder: Path) -> None:
    path = folder / "consumer.py"
    bracketed = changed(CHARGE, ('currency="eur"', 'currency=("eur")'), ("def f", "def g"))
    path.write_text(HEAD + CHARGE + "\n\n" + bracketed)
    lint("--all", "--fix", "--no-cache", "--select", "EO303")
    mended = changed(CHARGE, ('"eur"', '"eur", idempotency_key=f"charge:{payment_id}"'))
    assert path.read_text() == HEAD + mended + "\n\n" + bracketed

"""How sure a finding is, and what of it is shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from .conftest import BAD, Lint

ROW = """\
from celery import shared_task
from django.db import models


class Order(models.Model):
    total = models.IntegerField()


@shared_task
def book(total):
    Order.objects.create(total=total)
"""
TOOLS = """\
import requests
from fastmcp import FastMCP
from mcp.types import ToolAnnotations

mcp = FastMCP("shop")


@mcp.tool(annotations=ToolAnnotations(idempotentHint=True))
def order(sku: str) -> None:
    requests.post("https://shop.example/orders", json={"sku": sku})


@mcp.tool
def stock(sku: str) -> str:
    return requests.get("https://shop.example/stock").text


@mcp.tool
def pay(order_id: str) -> None:
    requests.post("https://shop.example/pay", headers={"Idempotency-Key": order_id})
"""
WORKER = """\
from abc import ABC, abstractmethod
from django.core.mail import send_mail


class QueueWorker(ABC):
    @abstractmethod
    def consume(self, event):
        pass


class MailWorker(QueueWorker):
    def consume(self, event):
        send_mail("Hello", event["text"], None, [event["to"]])
"""


def test_a_payment_is_shown(lint: Lint) -> None:
    Path("tasks.py").write_text(BAD)
    findings = json.loads(lint(".", "--json").out)["findings"]
    assert [finding["confidence"] >= 0.9 for finding in findings] == [True, True]


def test_a_row_that_a_task_creates_is_counted_and_shown_on_request(lint: Lint) -> None:
    Path("tasks.py").write_text(ROW)
    done = lint(".")
    assert done.code == 0
    assert "1 less sure finding not shown: see --all." in done.out
    assert "All clear" not in done.out
    assert lint(".", "--all", "--output-format", "concise").rules() == ["P11"]


def test_the_limit_can_be_set(lint: Lint) -> None:
    Path("tasks.py").write_text(ROW)
    Path("pyproject.toml").write_text("[tool.effectonce.lint]\nconfidence = 0.5\n")
    assert lint(".", "--output-format", "concise").rules() == ["P11"]


def test_an_effect_far_from_the_consumer_is_less_sure(lint: Lint) -> None:
    calls = "".join(f"def step{number}(amount):\n    step{number + 1}(amount)\n\n\n" for number in range(5))
    last = "def step5(amount):\n    requests.post('https://shop.example/pay', json=amount)\n\n\n"
    head = "import requests\nfrom celery import shared_task\n\n\n"
    Path("tasks.py").write_text(f"{head}{calls}{last}@shared_task\ndef charge(amount):\n    step0(amount)\n")
    assert lint(".").code == 0
    assert lint(".", "--all").code == 1


def test_a_tool_of_an_agent_is_judged_by_what_it_does(lint: Lint) -> None:
    Path("tools.py").write_text(TOOLS)
    done = lint(".", "--output-format", "concise")
    assert done.rules() == ["P11"]
    assert (
        "`order` sends an HTTP POST again whenever an agent calls it again, though it declares idempotentHint"
        in done.out
    )


def test_a_worker_that_derives_from_an_abstract_one_is_a_consumer(lint: Lint) -> None:
    Path("worker.py").write_text(WORKER)
    assert lint(".", "--output-format", "concise").rules() == ["P11"]


def test_markdown_is_read_on_request(lint: Lint) -> None:
    Path("design.md").write_text(
        "| consumer | effect | duplicates |\n|---|---|---|\n| billing | charge the card | no |\n"
    )
    assert lint(".").code == 0
    assert lint(".", "--designs").code == 1
    assert lint("design.md").code == 1


def test_a_named_file_without_a_design_is_not_called_clear(lint: Lint) -> None:
    Path("notes.md").write_text("# Notes\n\nBuy milk.\n")
    done = lint("notes.md")
    assert "nothing recognised in it" in done.out
    assert "All clear" not in done.out


def test_a_consumer_whose_effects_nobody_names_is_not_judged(lint: Lint) -> None:
    Path("consumers.yaml").write_text("consumers:\n  - name: billing\n    queue: orders\n")
    assert "consumer `billing` from `orders` is not judged: its effects are unknown" in lint("consumers.yaml").out


def test_what_an_editor_has_not_saved_is_checked(lint: Lint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    done = lint("--stdin-filename", "shop/tasks.py")
    assert done.rules() == ["P11", "EO303"]
    assert done.out.startswith("shop/tasks.py:6:5: P11")


def test_explain_takes_the_beginning_of_rules(lint: Lint) -> None:
    out = lint("--explain", "EO50").out
    assert all(f"{rule}: " in out for rule in ("EO501", "EO502", "EO503"))

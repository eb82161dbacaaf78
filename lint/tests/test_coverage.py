"""It says how much it looked at, and never that all is clear about what it did not look at (F90)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from effectonce_lint import engine
from effectonce_lint.config import Config
from effectonce_lint.findings import Finding
from effectonce_lint.python import analysis, consumer_trace, consumers
from effectonce_lint.python.values import DetectedConsumer, Trace

from .conftest import BAD, GOOD, Lint

TWO_TASKS = """\
import stripe
from celery import shared_task


@shared_task
def large(orders):
    total = 0
    total = %s
    return total


@shared_task
def charge(payment_id, amount):
    stripe.Charge.create(amount=amount, idempotency_key=payment_id)
"""
SUMS = " + ".join(["total"] * 300)


def last_lines(lint: Lint, *arguments: str) -> tuple[str, str]:
    done = lint("--no-cache", *arguments)
    assert done.code == 0
    *_, result, coverage = done.out.splitlines()
    return result, coverage


def test_it_counts_files_consumers_by_framework_and_judged_handlers(lint: Lint, folder: Path) -> None:
    (folder / "tasks.py").write_text(GOOD)
    (folder / "actors.py").write_text("import dramatiq\n\n\n@dramatiq.actor\ndef report(order): ...\n")
    (folder / "api.py").write_text(
        "from fastapi import FastAPI\n\napp = FastAPI()\n\n\n@app.post('/orders')\ndef order(body: dict): ...\n"
    )
    (folder / "queues.yaml").write_text("consumers:\n  - name: mailer\n    queue: q\n    effects: [upsert the row]\n")
    assert last_lines(lint, "--designs") == (
        "All clear.",
        "4 files, 3 consumers (celery 1, design 1, dramatiq 1), 4 handlers judged, none skipped.",
    )


def test_a_consumer_that_two_files_lead_to_counts_once(lint: Lint, folder: Path) -> None:
    (folder / "jobs.py").write_text("def send(order): ...\n")
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text(
            "from rq import Queue\n\nfrom jobs import send\n\nqueue = Queue()\nqueue.enqueue(send, 1)\n"
        )
    assert last_lines(lint)[1] == "3 files, 1 consumer (rq 1), 1 handler judged, none skipped."


def test_without_a_consumer_nothing_is_clear(lint: Lint, folder: Path) -> None:
    (folder / "library.py").write_text("def double(x):\n    return 2 * x\n")
    result, coverage = last_lines(lint)
    assert result == "No consumers found. Declare them: consumers in [tool.effectonce.lint]; --init proposes some."
    assert coverage == "1 file, 0 consumers, 0 handlers judged, none skipped."
    assert json.loads(lint("--json").out)["coverage"]["consumers"] == {}


@pytest.mark.parametrize("cache", [[], ["--no-cache"]])
def test_a_consumer_that_is_too_large_is_skipped_by_name_and_the_others_are_judged(
    lint: Lint, folder: Path, monkeypatch: pytest.MonkeyPatch, cache: list[str]
) -> None:
    monkeypatch.setattr(consumer_trace, "CONSUMER_FUEL", 100)
    (folder / "tasks.py").write_text(TWO_TASKS % SUMS)
    expected = [
        "tasks.py:6:5: skipped the Celery task `large`: too large to be followed to its end",
        "Nothing found in what was checked.",
        "1 file, 2 consumers (celery 2), 1 handler judged, 1 skipped.",
    ]
    for _ in range(2):  # the second time from the cache
        done = lint(*cache)
        assert (done.code, done.out.splitlines()) == (0, expected)
    assert lint("--quiet", *cache).out.splitlines() == expected, "quiet is for what is clear"
    coverage = json.loads(lint("--json", *cache).out)["coverage"]
    assert (coverage["files"], coverage["consumers"], coverage["judged"]) == (1, {"celery": 2}, 1)
    (skip,) = coverage["skipped"]
    assert (skip["subject"], skip["location"]["line"]) == ("the Celery task `large`", 6)
    (run,) = json.loads(lint("--output-format", "sarif", *cache).out)["runs"]
    assert run["properties"] == {"files": 1, "consumers": {"celery": 2}, "judged": 1, "skipped": 1}
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["message"]["text"].startswith("skipped the Celery task `large`: too large")


def test_so_is_one_that_is_nested_too_deeply(lint: Lint, folder: Path) -> None:
    (folder / "tasks.py").write_text(TWO_TASKS % f"total{'.add()' * 2300}")
    done = lint("--no-cache")
    assert "skipped the Celery task `large`: nested too deeply" in done.out
    assert done.out.endswith("1 file, 2 consumers (celery 2), 1 handler judged, 1 skipped.\n")


def test_a_function_that_is_too_large_to_be_searched_is_skipped_by_name(
    lint: Lint, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "FUNCTION_FUEL", 50)
    (folder / "consumer.py").write_text(
        f"def listen(channel, total):\n    total = {SUMS}\n    channel.basic_consume('orders', print)\n"
    )
    done = lint("--no-cache")
    assert done.out.splitlines()[0] == (
        "consumer.py:1:5: skipped the function `listen`: too large to be followed to its end"
    )


def test_a_defect_costs_one_consumer_and_not_its_file(
    lint: Lint, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = analysis.check_consumer

    def fail(consumer: DetectedConsumer, trace: Trace, *settings: object) -> list[Finding]:
        if consumer.name == "broken":
            raise KeyError("a defect")
        return check(consumer, trace, *settings)  # type: ignore[arg-type]

    monkeypatch.setattr(analysis, "check_consumer", fail)
    (folder / "tasks.py").write_text(f"{BAD}\n\n@shared_task\ndef broken(order): ...\n")
    done = lint("--output-format", "concise", "--no-cache")
    assert done.code == 2
    assert done.rules() == ["P11", "EO303", "EO900"]
    assert "tasks.py:11:5: EO900 the checker failed on the Celery task `broken` (KeyError: 'a defect')" in done.out
    assert done.out.endswith("1 file, 2 consumers (celery 2), 1 handler judged, 1 skipped.\n")


def test_a_defect_of_the_search_costs_one_class(lint: Lint, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(consumers.ConsumerScanner, "_scan_class", fail)
    (folder / "tasks.py").write_text(f"{BAD}\n\nclass Odd: ...\n")
    done = lint("--output-format", "concise", "--no-cache")
    assert done.rules() == ["P11", "EO303", "EO900"]
    assert "the checker failed on the class `Odd`" in done.out


def test_a_file_that_cannot_be_read_is_skipped_even_if_a_comment_hides_that(lint: Lint, folder: Path) -> None:
    (folder / "broken.py").write_text("def charge(:  # effectonce: ignore[EO900] to be written\n")
    (folder / "good.py").write_text(GOOD)
    done = lint("--no-cache")
    assert done.code == 0
    assert "broken.py:1:12: skipped the file: not valid Python" in done.out
    assert "All clear" not in done.out


def test_processes_report_what_they_skip(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_trace, "CONSUMER_FUEL", 100)
    monkeypatch.setattr(engine, "_MIN_BYTES_FOR_PROCESSES", 0)
    (folder / "tasks.py").write_text(TWO_TASKS % SUMS)
    coverage = engine.run(["."], Config(), jobs=2, cache=False).coverage
    assert [skip.subject for skip in coverage.skipped] == ["the Celery task `large`"]

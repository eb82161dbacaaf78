"""The cache: what was found before is found again without looking, and never wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from effectonce_lint import engine
from effectonce_lint.config import Config

from .conftest import BAD, GOOD


def run(*, jobs: int = 1, paths: tuple[str, ...] = (".",)) -> engine.LintReport:
    return engine.run(paths, Config(confidence=0, designs=True), jobs=jobs)


def rules(report: engine.LintReport) -> list[str]:
    return [each.rule for each in report.findings]


def test_the_second_run_looks_at_nothing_and_says_the_same(folder: Path) -> None:
    (folder / "bad.py").write_text(BAD)
    (folder / "queue.yaml").write_text("consumers:\n  - name: a\n    queue: q\n    effects: [charge the card]\n")
    first, second = run(), run()
    assert (first.looked_at, second.looked_at) == (2, 0)
    assert first.findings == second.findings
    assert second.lines == first.lines == 11


def test_a_file_that_changes_is_looked_at_again(folder: Path) -> None:
    (folder / "bad.py").write_text(BAD)
    run()
    (folder / "bad.py").write_text(GOOD)
    again = run()
    assert (again.looked_at, rules(again)) == (1, [])


@pytest.fixture
def caller(folder: Path) -> Path:
    (folder / "task.py").write_text(
        "from celery import shared_task\n\nfrom shop import pay\n\n\n@shared_task\ndef charge(order):\n    pay(order)\n"
    )
    return folder


def test_so_is_one_whose_effect_is_in_another_file_that_changes(caller: Path) -> None:
    (caller / "shop.py").write_text("def pay(order): ...\n")
    assert rules(run()) == []
    (caller / "shop.py").write_text(
        "import requests\n\n\ndef pay(order):\n    requests.post('https://erp', json=order)\n"
    )
    again = run()
    assert (again.looked_at, rules(again)) == (2, ["P11"])


def test_and_one_whose_import_is_there_only_now(caller: Path) -> None:
    assert rules(run()) == ["P11"], "pay, out of sight, leaves no doubt"
    (caller / "shop.py").write_text("def pay(order): ...\n")
    assert rules(run()) == []
    (caller / "shop.py").unlink()
    assert rules(run()) == ["P11"]


PORT = (
    "from abc import ABC, abstractmethod\n\n\nclass Port(ABC):\n    @abstractmethod\n    def store(self, order): ...\n"
)
ADAPTER = """\
import requests

from ports import Port


class Adapter(Port):
    def store(self, order):
        requests.post("https://erp", json=order)
"""


def test_and_one_whose_abstract_method_is_filled_in_only_now_and_elsewhere(folder: Path) -> None:
    (folder / "ports.py").write_text(PORT)
    (folder / "task.py").write_text(
        "from celery import shared_task\n\nfrom ports import Port\n\n\n@shared_task\ndef keep(order, port: Port):\n"
        "    port.store(order)\n"
    )
    assert rules(run()) == []
    (folder / "adapter.py").write_text(ADAPTER)
    assert rules(run()) == ["P11"]
    (folder / "adapter.py").unlink()
    assert rules(run()) == []


LOOP = """\
from kafka import KafkaConsumer


class Each:
    def __init__(self, handle):
        self.handle = handle

    def run(self):
        for message in KafkaConsumer("orders", group_id="g", enable_auto_commit=False):
            self.handle(message.value)
"""


def test_and_one_that_starts_what_receives_only_now(folder: Path) -> None:
    (folder / "each.py").write_text("class Each:\n    def __init__(self, handle): ...\n    def run(self): ...\n")
    (folder / "main.py").write_text(
        "import requests\n\nfrom each import Each\n\n\ndef main():\n"
        "    Each(lambda order: requests.post('https://erp', data=order)).run()\n"
    )
    assert rules(run()) == []
    (folder / "each.py").write_text(LOOP)
    assert rules(run()) == ["P11"]


def test_handlers_that_one_file_registers_are_not_there_for_the_next(folder: Path) -> None:
    """What is found in a file must not depend on which files were looked at before it."""
    (folder / "bus.py").write_text(
        "class Bus:\n    def __init__(self):\n        self.table = {}\n    def on(self, kind):\n"
        "        def add(handler):\n            self.table[kind] = handler\n            return handler\n"
        "        return add\n    def run(self, event):\n        self.table[event['kind']](event)\n\n\nbus = Bus()\n"
    )
    (folder / "a_handlers.py").write_text(
        "import requests\n\nfrom bus import bus\n\n\n@bus.on('paid')\ndef paid(event):\n"
        "    requests.post('https://erp')\n"
    )
    task = (
        "from celery import shared_task\n\nfrom bus import bus\n\n\n@shared_task\ndef dispatch(event):\n"
        "    bus.run(event)\n"
    )
    (folder / "b_task.py").write_text(task)
    assert rules(run()) == []
    (folder / "b_task.py").write_text(task.replace("from bus", "import a_handlers\nfrom bus"))
    assert rules(run()) == ["P11"]


def test_a_broken_cache_is_an_empty_one(folder: Path) -> None:
    (folder / "bad.py").write_text(BAD)
    run()
    cache = folder / ".effectonce_cache" / "lint.msgpack"
    for junk in (b"", b"\xc1", b"\x92\xa1x\x80", cache.read_bytes()[:-7]):
        cache.write_bytes(junk)
        assert (run().looked_at, rules(run())) == (1, ["P11", "EO303"])


def test_a_cache_that_cannot_be_written_is_done_without(folder: Path) -> None:
    (folder / "bad.py").write_text(BAD)
    (folder / ".effectonce_cache").write_text("a file where the folder should be")
    assert rules(run()) == rules(run()) == ["P11", "EO303"]


def test_git_does_not_see_it(folder: Path) -> None:
    (folder / "bad.py").write_text(BAD)
    run()
    assert (folder / ".effectonce_cache" / ".gitignore").read_text() == "*\n"


def test_several_processes_find_what_one_finds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        (folder / f"task{number}.py").write_text(BAD.replace("def charge", f"def charge_{number}"))
    alone = run(jobs=1).findings
    (folder / ".effectonce_cache" / "lint.msgpack").unlink()
    monkeypatch.setattr(engine, "_MIN_BYTES_FOR_PROCESSES", 1)
    monkeypatch.setattr(engine, "_BATCH_BYTES", 400)
    assert run(jobs=2).findings == alone
    assert len(alone) == 24

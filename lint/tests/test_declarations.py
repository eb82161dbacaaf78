"""A project declares what the checker does not know: consumers, effects and guards, by dotted name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from .conftest import Lint

CONSUMERS = {
    "a decorator out of sight": (
        "sdk.tasks.instrumented",
        "import stripe\nfrom sdk.tasks import instrumented\n\n\n@instrumented\n"
        "def charge(order, amount):\n    stripe.Charge.create(amount=amount)\n",
    ),
    "a decorator out of sight, called, as an attribute": (
        "sdk.tasks.instrumented",
        "import sdk\nimport stripe\n\n\n@sdk.tasks.instrumented(retries=3)\n"
        "def charge(order, amount):\n    stripe.Charge.create(amount=amount)\n",
    ),
    "a decorator of the project": (
        "myapp.registry.instrumented",
        "import stripe\n\nfrom myapp.registry import instrumented\n\n\n@instrumented\n"
        "def charge(order, amount):\n    stripe.Charge.create(amount=amount)\n",
    ),
    "a function that takes a handler": (
        "sdk.tasks.listen",
        "import stripe\nfrom sdk.tasks import listen\n\n\n"
        "def charge(order, amount):\n    stripe.Charge.create(amount=amount)\n\n\nlisten('orders', charge)\n",
    ),
    "the method of a base class": (
        "myapp.registry.Job.work",
        "import stripe\n\nfrom myapp.registry import Job\n\n\nclass Charge(Job):\n"
        "    def work(self, order, amount):\n        stripe.Charge.create(amount=amount)\n",
    ),
}
REGISTRY = """\
HANDLERS = {}


def instrumented(function):
    HANDLERS[function.__name__] = function
    return function


class Job:
    def work(self, order, amount):
        raise NotImplementedError
"""
TASK = "from celery import shared_task\nfrom sdk import ledger\n\n\n@shared_task\ndef charge(order):\n    {}\n"


@pytest.fixture(autouse=True)
def app(folder: Path) -> Path:
    (folder / "myapp").mkdir()
    (folder / "myapp" / "__init__.py").touch()
    (folder / "myapp" / "registry.py").write_text(REGISTRY)
    return folder / "myapp"


def declare(folder: Path, **names: str) -> None:
    lines = [f'{setting} = ["{name}"]\n' for setting, name in names.items()]
    (folder / "pyproject.toml").write_text("[tool.effectonce.lint]\n" + "".join(lines))


def rules(lint: Lint) -> list[str]:
    return lint("--output-format", "concise", "--select", "P11").rules()


@pytest.mark.parametrize(("name", "code"), CONSUMERS.values(), ids=CONSUMERS)
def test_a_declared_consumer_is_judged(lint: Lint, folder: Path, app: Path, name: str, code: str) -> None:
    (app / "tasks.py").write_text(code)
    assert rules(lint) == []
    declare(folder, consumers=name)
    assert rules(lint) == ["P11"], "although the cache has the result without the declaration"
    assert "1 consumer (declared 1)" in lint().out


def test_a_declared_effect_is_one_and_is_not_followed(lint: Lint, folder: Path, app: Path) -> None:
    (app / "tasks.py").write_text(TASK.format("ledger.look(order)").replace("from sdk", "from myapp"))
    (app / "ledger.py").write_text("def look(order):\n    return order\n")
    assert rules(lint) == []
    declare(folder, effects="myapp.ledger.look")
    assert rules(lint) == ["P11"]
    (app / "tasks.py").write_text(TASK.format("ledger.look(order)"))
    assert rules(lint) == [], "another module of that name"
    declare(folder, effects="sdk.ledger.look")
    assert rules(lint) == ["P11"]


@pytest.mark.parametrize(
    "guarded",
    [
        TASK.format("ledger.pay(order)").replace("@shared_task\n", "@shared_task\n@ledger.only\n"),
        TASK.format("with ledger.only(order):\n        ledger.pay(order)"),
        TASK.format("if not ledger.only(order):\n        return\n    ledger.pay(order)"),
    ],
    ids=["decorator", "context", "test"],
)
def test_a_declared_guard_is_one(lint: Lint, folder: Path, app: Path, guarded: str) -> None:
    (app / "tasks.py").write_text(guarded)
    declare(folder, effects="sdk.ledger.pay")
    assert rules(lint) == ["P11"]
    declare(folder, effects="sdk.ledger.pay", guards="sdk.ledger.only")
    assert rules(lint) == []


@pytest.mark.parametrize("name", ["instrumented", "myapp.tasks.", "myapp/tasks.py", ""])
def test_a_name_without_its_module_is_refused(lint: Lint, folder: Path, name: str) -> None:
    declare(folder, consumers=name)
    done = lint()
    assert done.code == 2
    assert "is not a dotted name" in done.err


def test_init_proposes_the_decorators_that_seem_to_make_consumers(lint: Lint, app: Path) -> None:
    (app / "wrapping.py").write_text(
        "from celery import shared_task\n\n\n"
        "def registered(function):\n    if function.__name__ in NAMES:\n        return shared_task(print)\n"
    )
    (app / "tasks.py").write_text(
        "from functools import lru_cache\n\nfrom celery import shared_task\nfrom sdk import background_task, timed\n\n"
        "from myapp.wrapping import registered\n\n\n"
        "@background_task\ndef charge(order): ...\n\n\n@background_task\n@timed\ndef refund(order): ...\n\n\n"
        "@registered\ndef report(order): ...\n\n\n@shared_task\ndef known(order): ...\n\n\n@lru_cache\ndef job(): ...\n"
    )
    done = lint("--init")
    assert done.code == 0
    proposed = tomllib.loads(done.out)["tool"]["effectonce"]["lint"]["consumers"]
    assert proposed == ["sdk.background_task", "myapp.wrapping.registered"]
    assert '"sdk.background_task",  # decorates 2: myapp/tasks.py:10' in done.out


def test_init_has_nothing_to_propose_where_all_is_known_or_declared(lint: Lint, folder: Path, app: Path) -> None:
    (app / "tasks.py").write_text(CONSUMERS["a decorator out of sight"][1].replace("instrumented", "traced_task"))
    assert "sdk.tasks.traced_task" in lint("--init").out
    declare(folder, consumers="sdk.tasks.traced_task")
    assert lint("--init").out.startswith("# Nothing to propose")

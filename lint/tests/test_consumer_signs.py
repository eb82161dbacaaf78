"""A consumer is found through imports and assignments, in a file that does not name the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Lint

CHARGE = "    stripe.Charge.create(amount=amount)\n"
FACTORY = """\
from functools import wraps

from dramatiq import actor as make_actor


def actor(queue):
    def decorator(function):
        @wraps(function)
        async def with_session(*args, **kwargs):
            return await function(*args, **kwargs)

        make_actor(with_session, queue_name=queue)
        return with_session

    return decorator
"""
DECORATED = f"import stripe\n\nfrom app.worker import actor\n\n\n@actor\ndef charge(payment_id, amount):\n{CHARGE}"
WAYS = {
    "the library's own": ({"app/worker.py": "from dramatiq import actor\n"}, DECORATED),
    "assigned": ({"app/worker.py": "import dramatiq\n\nactor = dramatiq.actor\n"}, DECORATED),
    "exported again": (
        {"app/worker.py": "from .queues import actor\n", "app/queues.py": "from dramatiq import actor\n"},
        DECORATED,
    ),
    "exported by a star": (
        {"app/worker.py": "from .queues import *\n", "app/queues.py": "from dramatiq import actor\n"},
        DECORATED,
    ),
    "a factory of wrappers": ({"app/worker.py": FACTORY}, DECORATED.replace("@actor", '@actor("payments")')),
    "a function that calls one elsewhere": (
        {
            "app/worker.py": "from .queues import declare\n\n\ndef actor(function):\n    return declare(function)\n",
            "app/queues.py": "import dramatiq\n\n\ndef declare(function):\n    return dramatiq.actor(function)\n",
        },
        DECORATED,
    ),
    "a class that derives from the library's": (
        {
            "app/worker.py": "from functools import partial\n\nfrom rq.decorators import job as rq_job\n\n\n"
            "class Job(rq_job): ...\n\n\nactor = partial(Job, connection=None)\n"
        },
        DECORATED.replace("@actor", "@actor('payments')"),
    ),
    "an attribute of a module": (
        {"app/worker.py": "from dramatiq import actor\n"},
        DECORATED.replace("from app.worker import actor", "from app import worker as w").replace("@actor", "@w.actor"),
    ),
    "a base class": (
        {
            "app/base.py": "from .root import Root\n\n\nclass Base(Root): ...\n",
            "app/root.py": "from celery import Task\n\n\nclass Root(Task): ...\n",
        },
        "import stripe\n\nfrom app.base import Base\n\n\nclass Charge(Base):\n"
        "    def run(self, payment_id, amount):\n        stripe.Charge.create(amount=amount)\n",
    ),
    "a registration": (
        {"app/main.py": "from celery import Celery\n\napp = Celery()\n\n\ndef add(f):\n    app.task(f)\n"},
        f"import stripe\n\nfrom app.main import add\n\n\ndef charge(payment_id, amount):\n{CHARGE}\n\nadd(charge)\n",
    ),
}


def write(folder: Path, files: dict[str, str]) -> None:
    for path, text in {"app/__init__.py": "", **files}.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.parametrize(("files", "tasks"), WAYS.values(), ids=WAYS)
def test_what_makes_a_consumer_is_followed(lint: Lint, folder: Path, files: dict[str, str], tasks: str) -> None:
    write(folder, {**files, "app/tasks.py": tasks})
    done = lint("--output-format", "concise", "--no-cache", "--select", "P11")
    assert done.rules() == ["P11"]
    assert done.out.startswith("app/tasks.py:")


def test_a_wrapper_is_named_as_the_function_that_it_wraps_and_that_is_judged(lint: Lint, folder: Path) -> None:
    bad = DECORATED.replace("@actor", '@actor("payments")')
    good = bad.replace("amount=amount", "amount=amount, idempotency_key=payment_id")
    write(folder, {"app/worker.py": FACTORY, "app/bad.py": bad, "app/good.py": good})
    done = lint("--output-format", "concise", "--no-cache", "--select", "P11")
    assert done.out.splitlines()[0].startswith("app/bad.py:7:5: P11 the Dramatiq actor `charge` charges a card")
    assert done.rules() == ["P11"]
    assert done.out.endswith("4 files, 2 consumers (dramatiq 2), 2 handlers judged, none skipped.\n")


def test_a_decorator_that_comes_to_register_is_noticed_by_the_cache(lint: Lint, folder: Path) -> None:
    write(folder, {"app/worker.py": "def actor(function):\n    return function\n", "app/tasks.py": DECORATED})
    assert lint().out.startswith("No consumers found.")
    (folder / "app/worker.py").write_text("from dramatiq import actor\n")
    assert lint("--output-format", "concise", "--select", "P11").rules() == ["P11"]

"""The checker as people run it, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from effectonce_lint.cli import main

BAD = """\
import stripe
from celery import shared_task


@shared_task
def charge(payment_id, amount):
    stripe.Charge.create(amount=amount, currency="eur")
"""
GOOD = """\
import stripe
from celery import shared_task


@shared_task
def charge(payment_id, amount):
    stripe.Charge.create(amount=amount, currency="eur", idempotency_key=payment_id)
"""


@dataclass
class Done:
    code: int
    out: str
    err: str

    def rules(self) -> list[str]:
        """The rules of a concise listing, in its order."""
        return [line.split(": ", 1)[1].split()[0] for line in self.out.splitlines() if ".py:" in line]


Lint = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, which we are in."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return tmp_path


@pytest.fixture
def lint(folder: Path, capsys: pytest.CaptureFixture[str]) -> Lint:
    """Run `effectonce-lint` here."""

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        code = main([*arguments])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run

"""`effectonce dashboard`, as a process."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import effectonce as eo
from effectonce.cli import main

SHOP = """
import effectonce as eo

store = eo.connect("sqlite:///shop.db")
worker = eo.Worker(eo.connect_broker("sqlite:///queue.db"), store=store, name="billing")
not_a_saga = 3


@worker.handler("orders")
def paid(message: eo.Message) -> None:
    pass
"""


def make(folder: Path) -> None:
    """A store in ``folder``: the dashboard makes none."""
    with eo.connect(f"sqlite:///{folder}/shop.db", sweep_every=None) as store:
        store.migrate()


@contextmanager
def running(folder: Path, *options: str, **variables: str) -> Iterator[tuple[str, str]]:
    """The command until it listens: its address, and its output. It ends as by Ctrl-C, without an error."""
    command = [sys.executable, "-m", "effectonce", "dashboard", "--port", "0", *options]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EFFECTONCE")}
    process = subprocess.Popen(
        command, cwd=folder, env={**inherited, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(1 if "EFFECTONCE_DASHBOARD_TOKEN" in variables else 3)]
        address = re.search(r"http://[^ ]+", lines[0])
        assert address is not None, process.stderr.read() if process.stderr else ""
        yield address[0], "".join(lines)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert errors == ""


def test_generated_tokens_are_printed(tmp_path: Path) -> None:
    make(tmp_path)
    with running(tmp_path, "--store", "sqlite:///shop.db") as (address, output):
        tokens = dict(re.findall(r"(operator|viewer) token: +([^\s]+)", output))
        assert set(tokens) == {"operator", "viewer"}
        for role, token in tokens.items():
            with httpx.Client(base_url=address, follow_redirects=True) as client:
                page = client.post("/login", data={"who": "ada", "token": token})
                assert (page.status_code, f"<small>{role}</small>" in page.text) == (200, True)


def test_it_shows_a_workers_store_and_queues(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    token = "a-token-from-the-environment"
    variables = {"EFFECTONCE_DASHBOARD_TOKEN": token}
    with running(tmp_path, "--worker", "shop:worker", **variables) as (address, output):
        assert token not in output
        assert "sqlite:///shop.db" in output
        with httpx.Client(base_url=address, follow_redirects=True) as client:
            client.post("/login", data={"who": "ada", "token": token})
            assert "billing/orders" in client.get("/dead-letters").text


def test_other_machines_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path}/shop.db"
    assert main(["dashboard", "--store", store, "--host", "0.0.0.0"]) == 2
    assert "--allow-remote" in capsys.readouterr().err
    assert main(["dashboard", "--store", store, "--host", "0.0.0.0", "--allow-remote"]) == 2
    assert "EFFECTONCE_DASHBOARD_TOKEN" in capsys.readouterr().err


def test_a_port_in_use_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["dashboard", "--store", f"sqlite:///{tmp_path}/shop.db", "--port", port]) == 2
    assert "choose another --port" in capsys.readouterr().err


def test_a_name_that_is_not_a_saga_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shopped.py").write_text("not_a_saga = 3\n")
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["dashboard", "--store", "sqlite:///shop.db", "--saga", "shopped:not_a_saga"]) == 2
    assert "not Saga" in capsys.readouterr().err

"""The service as its README says: started by one command, and killed by its own script."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.process import free_port

SERVICE = Path(__file__).parents[2] / "examples" / "service"


def environment(**more: str) -> dict[str, str]:
    own = ("EFFECTONCE_", "SERVICE_", "OTEL_")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(own)}, **more}


def spans_of(output: str) -> Iterator[dict[str, Any]]:
    """The spans that `ConsoleSpanExporter` has printed among other lines."""
    decoder = json.JSONDecoder()
    at = output.find("\n{\n")
    while at >= 0:
        span, _ = decoder.raw_decode(output, at + 1)
        yield span
        at = output.find("\n{\n", at + 1)


@pytest.mark.quick_on("memory")
@pytest.mark.parametrize("kind", ["memory", "servers"])
def test_one_command_serves_it_in_one_process(
    kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    """Placed twice, shipped once; what cannot be shipped is refunded; one trace from the request to the mail."""
    port = free_port(2)
    urls = {}
    if kind == "servers":
        urls["EFFECTONCE_STORE"] = request.getfixturevalue("empty_postgres")
        urls["EFFECTONCE_BROKER"] = request.getfixturevalue("rabbitmq_url")
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "--port", str(port)],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(SERVICE), OTEL_TRACES_EXPORTER="console", SERVICE_QUEUES=unique_name, **urls),
        stdout=(tmp_path / "output").open("w"),
        stderr=subprocess.STDOUT,
    )
    bank = f"http://127.0.0.1:{port + 1}"
    headers = {"Authorization": "Bearer ann", "Idempotency-Key": '"8e03978e"'}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as api:

            def wait_for(url: str, ready: Any) -> Any:
                deadline = time.monotonic() + 60
                while True:
                    try:
                        found = api.get(url).json()
                        if ready(found):
                            return found
                    except httpx.TransportError:
                        assert process.poll() is None, (tmp_path / "output").read_text()
                    assert time.monotonic() < deadline, (tmp_path / "output").read_text()
                    time.sleep(0.1)

            def place(**more: Any) -> httpx.Response:
                return api.post("/orders", json={"item": "chair", "amount": 4200} | more)

            wait_for("/openapi.json", bool)
            wait_for(f"{bank}/ledger", bool)
            first, again = place(), place()
            assert (first.status_code, again.status_code) == (201, 201), first.text
            assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
            assert place(country="Atlantis").status_code == 422  # the same key, another request
            good = first.json()["order"]
            api.headers["Idempotency-Key"] = '"another"'
            far = place(country="Atlantis").json()["order"]
            shipped = wait_for(f"/orders/{good}", lambda order: order["state"] in ("shipped", "cancelled"))
            cancelled = wait_for(f"/orders/{far}", lambda order: order["state"] in ("shipped", "cancelled"))
            mails = wait_for(f"{bank}/ledger", lambda ledger: len(ledger["mails"]) == 2)["mails"]
            assert (shipped["state"], shipped["refund"]) == ("shipped", None)
            assert cancelled["state"] == "cancelled"
            assert sorted(mails) == sorted([f"Your order {good}: shipped.", f"Your order {far}: cancelled."])
            bookings = {(kind, order): id for kind, order, _, id in api.get(f"{bank}/ledger").json()["bookings"]}
            assert bookings == {
                ("charge", good): shipped["charge"],
                ("charge", far): cancelled["charge"],
                ("refund", far): cancelled["refund"],
            }
            metrics = api.get("/metrics").text
            assert 'effectonce_outcomes_total{kind="completed",scope="saga/service-fulfilment"} 1.0' in metrics
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, (tmp_path / "output").read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    spans = list(spans_of((tmp_path / "output").read_text()))
    requested, mailed = (
        {span["context"]["trace_id"] for span in spans if span["name"] == name}
        for name in ("POST /orders", f"process {unique_name}.ended")
    )
    assert len(mailed) == 2
    assert mailed <= requested


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(320)
def test_nothing_is_lost_or_doubled_while_its_processes_are_killed(
    tmp_path: Path, empty_postgres: str, rabbitmq_url: str, unique_name: str
) -> None:
    """F01 to F04, F06, F42 and F58: kill -9 of the API, the relay and the worker on PostgreSQL and RabbitMQ."""
    command = [sys.executable, str(SERVICE / "chaos.py"), "--orders", "30", "--rounds", "2", "--every", "1"]
    chaos = subprocess.Popen(
        [*command, "--lease", "2", "--give-up-after", "200", "--seed", "7", "--folder", str(tmp_path)],
        env=environment(EFFECTONCE_STORE=empty_postgres, EFFECTONCE_BROKER=rabbitmq_url, SERVICE_QUEUES=unique_name),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = chaos.communicate(timeout=280)
    except BaseException:
        os.killpg(chaos.pid, signal.SIGKILL)  # and the processes that it has started
        raise
    log = tmp_path / "service.log"
    assert chaos.returncode == 0, f"{out}\n{log.read_text()[-5000:] if log.exists() else ''}"
    assert "killed: api 2 times, relay 2 times, worker 2 times" in out
    assert out.endswith("nothing lost, nothing doubled\n")


def test_its_migrations_create_what_its_models_say(tmp_path: Path) -> None:
    for alembic in ("upgrade head", "check"):
        done = subprocess.run(
            [sys.executable, "-m", "alembic", "-c", str(SERVICE / "alembic.ini"), *alembic.split()],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_its_chaos_script_sees_what_is_lost_and_what_is_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("service_chaos", SERVICE / "chaos.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "service_chaos", script)
    spec.loader.exec_module(script)
    assert script.tally("charges", ["a", "b"], ["b", "a"]) == ("charges", 2, 0, 0)
    assert script.tally("charges", ["a", "b"], ["a", "a", "of no order"]) == ("charges", 2, 1, 2)

"""The commands of the compose file, run one after the other against a real database and a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import effectonce as eo
from tests.harness.process import free_port
from tests.harness.waiting import until
from tests.telemetry.scrape import get

from .files import DEPLOY, METRICS_PORT, compose

SERVICES = compose()["services"]


class Deployment:
    """Runs the compose file's services as processes of this machine."""

    def __init__(self, folder: Path, database: str, broker: str, queue: str) -> None:
        self.folder = folder
        self.environment = {
            **os.environ, "EFFECTONCE_STORE": database, "EFFECTONCE_BROKER": broker, "SHOP_QUEUE": queue,
        }  # fmt: skip
        (folder / "shop.py").symlink_to(DEPLOY / "shop.py")

    def run(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            [*command], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def serving(self, service: str) -> Iterator[str]:
        """Run a service until the block ends, then stop it as Docker does. Gives the address that it listens on."""
        address = f"127.0.0.1:{free_port()}"
        words = [address if word == f"0.0.0.0:{METRICS_PORT}" else word for word in SERVICES[service]["command"]]
        assert address in words
        process = subprocess.Popen(effectonce(words), cwd=self.folder, env=self.environment)
        try:
            yield address
            process.send_signal(signal.SIGTERM)
            assert process.wait(45) == 0
        finally:
            process.kill()
            process.wait()


def effectonce(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "effectonce", *words]


def ready(address: str) -> bool:
    try:
        return get(address, "/readyz")[0] == 200
    except OSError:
        return False


@pytest.fixture
def deployment(tmp_path: Path, empty_postgres: str, rabbitmq_url: str, unique_name: str) -> Deployment:
    return Deployment(tmp_path, empty_postgres, rabbitmq_url, unique_name)


def test_an_order_is_placed_published_and_shipped_once(deployment: Deployment) -> None:
    shop = [sys.executable, "shop.py"]
    deployment.run(effectonce(SERVICES["migrate"]["command"]))
    deployment.run([*shop, *SERVICES["migrate-shop"]["command"]])
    deployment.run([*shop, "order", "o-1"])
    with deployment.serving("worker") as worker, deployment.serving("relay") as relay:
        until(lambda: ready(worker) and ready(relay))
        deployment.run([*shop, "order", "o-2"])
        with psycopg.connect(deployment.environment["EFFECTONCE_STORE"], autocommit=True) as conn:
            query = "SELECT order_id FROM shipments ORDER BY order_id"
            until(lambda: [row[0] for row in conn.execute(query)] == ["o-1", "o-2"])
        assert 'effectonce_in_hand{queue="' in get(worker, "/metrics")[1]
        assert "effectonce_outbox_oldest_seconds{" in get(relay, "/metrics")[1]


def test_the_application_says_what_is_wrong_without_a_broker(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EFFECTONCE_")}
    (tmp_path / "shop.py").symlink_to(DEPLOY / "shop.py")
    command = effectonce(["run", "shop:worker", "--check"])
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert eo.ConfigurationError.code in done.stderr

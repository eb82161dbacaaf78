"""docs/operate/deploy.md says of these files what is so."""

from __future__ import annotations

import re

from .files import DEPLOY, METRICS_PORT, ROOT, UNITS, compose, manifest, unit
from .shop import Shop

PAGE = (ROOT / "docs/operate/deploy.md").read_text()


def row(name: str) -> str:
    """The row of a table that begins with ``name``."""
    (found,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", PAGE, re.MULTILINE)
    return str(found)


def test_it_names_every_folder_and_file_at_the_top() -> None:
    names = {file.name for file in DEPLOY.iterdir()} - {"README.md", "Dockerfile.dockerignore", "__pycache__"}
    (tree,) = re.findall(r"```text\ndeploy/\n(.*?)```", PAGE, re.DOTALL)
    assert {line.split()[0].rstrip("/") for line in tree.splitlines()} == names


def test_it_names_how_long_each_may_take_to_stop(shop: Shop) -> None:
    seconds = {
        name: manifest("Deployment", name)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for name in ("shop-worker", "outbox-relay")
    }
    assert f"{seconds['shop-worker']} for the worker, {seconds['outbox-relay']} for the relay" in row("Kubernetes")
    (timeout,) = {unit(file)["Service"]["TimeoutStopSec"][0] for file in UNITS}
    assert f" {timeout} " in row("systemd")
    assert f" {compose()['services']['worker']['stop_grace_period']} " in row("Docker Compose")
    assert f'Worker(drain="{shop.drain_s:.0f}s")' in PAGE


def test_it_names_what_the_autoscalers_ask_for() -> None:
    (metric,) = manifest("HorizontalPodAutoscaler", "shop-worker")["spec"]["metrics"]
    assert f"`{metric['pods']['metric']['name']}`" in row("worker")
    (metric,) = manifest("HorizontalPodAutoscaler", "outbox-relay")["spec"]["metrics"]
    assert f"`{metric['external']['metric']['name']}`" in row("relay")
    assert f" {metric['external']['target']['value']} s " in row("relay")


def test_it_names_the_port() -> None:
    assert f"--listen 0.0.0.0:{METRICS_PORT}" in PAGE

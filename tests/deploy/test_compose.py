"""The compose file and the Dockerfile: valid, healthy, reachable from this machine only; the image can be built."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from .files import DEPLOY, METRICS_PORT, ROOT, compose, dockerfile
from .shop import Shop

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
STAGES = [argument.split(" AS ")[1] for instruction, argument in dockerfile() if instruction == "FROM"]


def test_it_is_valid() -> None:
    """By the schema of the compose specification that check-jsonschema carries."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(DEPLOY / "compose.yaml")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_part_is_there() -> None:
    assert set(SERVICES) == {
        "postgres", "rabbitmq", "migrate", "migrate-shop", "worker", "relay", "prometheus", "grafana",
    }  # fmt: skip


@pytest.mark.parametrize("name", SERVICES)
def test_it_says_whether_it_is_healthy_unless_it_ends(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    if name.startswith("migrate"):
        assert check == {"disable": True}
    else:
        assert check["test"][0] == "CMD"
        if name in OURS:
            assert f"http://127.0.0.1:{METRICS_PORT}/readyz" in check["test"][-1]
            compile(check["test"][-1], name, "exec")


@pytest.mark.parametrize("name", SERVICES)
def test_its_ports_are_open_to_this_machine_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_what_it_waits_for_can_happen(name: str) -> None:
    for other, condition in SERVICES[name].get("depends_on", {}).items():
        ends = SERVICES[other]["healthcheck"] == {"disable": True}
        assert condition == {"condition": "service_completed_successfully" if ends else "service_healthy"}


@pytest.mark.parametrize("name", OURS)
def test_ours_have_no_rights_and_the_time_to_stop(name: str, shop: Shop) -> None:
    service = OURS[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    seconds = 0 if "entrypoint" in service else shop.seconds_to_stop(service["command"])
    assert float(service["stop_grace_period"].removesuffix("s")) > seconds


def test_every_file_that_is_mounted_exists() -> None:
    mounted = [volume for service in SERVICES.values() for volume in service.get("volumes", ()) if volume[0] == "."]
    assert len(mounted) == 3
    assert all((DEPLOY / volume.split(":")[0]).exists() and volume.endswith(":ro") for volume in mounted)
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/effectonce.yaml").read_text())["providers"]
    assert any(f"effectonce.json:{provider['options']['path']}/" in volume for volume in mounted)


def test_prometheus_scrapes_the_worker_and_the_relay_and_grafana_asks_prometheus() -> None:
    configuration = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (job,) = configuration["scrape_configs"]
    (group,) = job["static_configs"]
    assert group["targets"] == [f"worker:{METRICS_PORT}", f"relay:{METRICS_PORT}"]
    assert all((DEPLOY / "prometheus" / name).exists() for name in configuration["rule_files"])
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert [source["url"] for source in sources["datasources"]] == ["http://prometheus:9090"]


# -- the image


def test_the_images_are_built_from_stages_that_exist() -> None:
    for service in OURS.values():
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
        assert build["target"] in STAGES


def test_it_does_not_run_as_root_and_is_pinned() -> None:
    instructions = dockerfile()
    (user,) = (argument for instruction, argument in instructions if instruction == "USER")
    assert all(part.isdecimal() and int(part) > 0 for part in user.split(":"))
    (install,) = (argument for instruction, argument in instructions if "pip install" in argument)
    assert "-c constraints.txt" in install
    extras = set(install.partition("'.[")[2].partition("]'")[0].split(","))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"cli", "postgres", "rabbitmq", "prometheus"} == extras <= set(known)


def copied() -> list[str]:
    """What the Dockerfile copies from the checkout."""
    return [
        source
        for instruction, argument in dockerfile()
        if instruction == "COPY" and not argument.startswith("--from")
        for source in argument.split()[:-1]
    ]


def test_the_build_sees_what_it_copies_and_no_more() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    shown = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert sorted(shown) == sorted(copied())
    assert "*" in lines
    assert not any(fnmatch(secret, pattern) for pattern in shown for secret in (".env", ".git", ".venv"))


@pytest.mark.long
def test_what_is_copied_is_all_that_the_wheel_needs(tmp_path: Path) -> None:
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif "/" not in name:
            shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "."]
    done = subprocess.run([*command, "--wheel-dir", "dist"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "dist").glob("*.whl"))) == 1

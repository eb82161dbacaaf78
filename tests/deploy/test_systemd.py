"""The systemd units: accepted by systemd, hardened, restarted after a failure, and given the time to stop."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .files import UNITS, parse, unit
from .shop import Shop

#: Of 10, by `systemd-analyze security`: 0 is a service that may do nothing.
MAX_EXPOSURE = 2.0


@pytest.fixture(params=UNITS, ids=lambda file: file.name)
def file(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def installed(file: Path, tmp_path: Path) -> Path:
    """The unit as it would be on a machine that has the program, which systemd looks for."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / "effectonce"
    program.symlink_to(sys.executable)
    copy = tmp_path / file.name
    copy.write_text(re.sub(r"(?m)^(Exec\w+=)\S+/effectonce", rf"\1{program}", file.read_text()))
    return copy


def test_systemd_accepts_it(installed: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_setting_that_does_not_exist_is_noticed(installed: Path) -> None:
    installed.write_text(installed.read_text().replace("TimeoutStopSec", "TimeoutStopSeconds"))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "TimeoutStopSeconds" in done.stderr


def test_it_may_do_little_beside_its_work(installed: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd does not rate units that are not loaded")
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert exposure is not None, done.stderr
    assert float(exposure[1]) <= MAX_EXPOSURE, done.stdout


def test_it_is_stopped_gently_and_restarted_after_a_failure(file: Path, shop: Shop) -> None:
    service = unit(file)["Service"]
    assert (service["KillSignal"], service["Restart"]) == (["SIGTERM"], ["on-failure"])
    (command,) = service["ExecStart"]
    words = shlex.split(command)[1:]
    assert float(service["TimeoutStopSec"][0]) > shop.seconds_to_stop(words)
    assert parse(words)["listen"].startswith("127.0.0.1:")


def test_the_urls_are_in_a_file_for_root(file: Path) -> None:
    assert unit(file)["Service"]["EnvironmentFile"] == ["/etc/shop/effectonce.env"]
    assert "://" not in file.read_text()


def test_two_on_one_machine_listen_on_two_ports() -> None:
    commands = [unit(file)["Service"]["ExecStart"][0] for file in UNITS]
    assert len({parse(shlex.split(command)[1:])["listen"] for command in commands}) == len(UNITS)

"""What the intents example leaves in doubt is resolved as its README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "intents"


def run(*command: str, cwd: Path, **extra: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "EFFECTONCE_STORE"} | extra
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_operator_resolves_the_mail_that_is_in_doubt(tmp_path: Path) -> None:
    run(str(EXAMPLE / "payments.py"), cwd=tmp_path)
    app, store = "payments:intents", {"EFFECTONCE_STORE": f"sqlite:///{tmp_path}/payments.db"}
    command = ("-m", "effectonce", "intents")
    listed = run(*command, "list", app, "--in-doubt", cwd=EXAMPLE, **store)
    assert "payments/ses/receipt" in listed
    (id,) = set(re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", listed))
    run(*command, "resolve", app, id, "--done", "null", "--yes", cwd=EXAMPLE, **store)
    assert id not in run(*command, "list", app, cwd=EXAMPLE, **store)

"""A program that ends without closing its store prints nothing of what its driver thinks about that."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

import effectonce as eo

PROGRAM = """
import asyncio, sys
import effectonce as eo

store = eo.connect(sys.argv[1], sweep_every=None)


@eo.once(store, scope="exits", key="k")
async def charge(k: str) -> str:
    return "receipt"


for key in sys.argv[2:]:  # each on a loop of its own
    assert asyncio.run(charge(key)) == "receipt"
"""


@pytest.mark.parametrize("server", ["mariadb", "postgres", "redis", "dynamodb", "sqlite"])
def test_nothing_is_printed_at_the_end(
    request: pytest.FixtureRequest, server: str, unique_name: str, tmp_path: object
) -> None:
    if server == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
    else:
        url = request.getfixturevalue(f"{server}_url")
        if server == "dynamodb":
            url = url.replace("//effectonce", f"//{unique_name}")
        with eo.connect(url, sweep_every=None) as store:
            store.migrate()
    keys = [str(uuid.uuid4()) for _ in range(2)]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, *keys],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")

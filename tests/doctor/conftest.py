"""Doctor's findings about a store, by code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import effectonce as eo
from effectonce.doctor import DoctorFinding, examine
from tests.conftest import skip_or_fail
from tests.harness import installed, servers

FindingsByCode = dict[str, DoctorFinding]
StoreOpener = Callable[..., eo.Store]


@pytest.fixture
def open_store() -> Iterator[StoreOpener]:
    """``open_store(url, prefix="x")``: a store without a sweeper, closed in the end."""
    stores: list[eo.Store] = []

    def open_store(url: str, **options: str) -> eo.Store:
        words = "&".join(f"{name}={value}" for name, value in options.items())
        store = eo.connect(f"{url}{'&' if '?' in url else '?'}{words}" if words else url, sweep_every=None)
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """A server of this module: doctor examines all of it, and its tests change settings."""
    try:
        server = servers.postgres(durable=True)
    except installed.Missing as missing:
        skip_or_fail(str(missing))
    with server:
        yield server.url


@pytest.fixture(scope="module")
def mariadb_url(own_mariadb: servers.MariaDB) -> str:
    return own_mariadb.url


@pytest.fixture(scope="module")
def own_redis() -> Iterator[servers.Redis]:
    """A Redis whose settings may be changed; it is safe (appendonly) at first."""
    with servers.redis() as server:
        server.execute("CONFIG", "SET", "appendonly", "yes")
        yield server


def findings_by_code(*args: Any, **options: Any) -> FindingsByCode:
    """Return the findings by code; each of them says what is wrong, why it matters and what to run."""
    findings = examine(*args, **options).findings
    for finding in findings:
        assert all((finding.about, finding.what, finding.why, finding.run)), finding
        assert "{" not in finding.run, "a placeholder was not filled in"
    assert len({finding.code for finding in findings}) == len(findings), findings
    return {finding.code: finding for finding in findings}


def make_done_records(store: eo.Store, *keys: str, scope: str = "charge", retention: str = "15d") -> None:
    """Make records that are done."""
    for key in keys:
        with eo.block(store, scope=scope, key=key, retention=retention) as block:
            assert block.first
            block.result = 1

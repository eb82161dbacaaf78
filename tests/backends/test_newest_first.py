"""Lists by the last change where a store sorts only a part of its records. The contract's suite tests whole lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import effectonce as eo
from effectonce.errors import InvalidOption
from effectonce.record import Page
from tests.backends.dynamodb.table import table_url

#: By store: the constants that bound a sorted list, with values for ten records.
BOUNDS: dict[str, dict[str, int]] = {
    "sqlite": {"effectonce.backends.sqlite.record_reader.MAX_SORTED_RECORDS": 4},
    "postgres": {"effectonce.backends.postgres.newest_first.MAX_SORTED_RECORDS": 4},
    "mariadb": {"effectonce.backends.mysql.store.MAX_SORTED_RECORDS": 4},
    "redis": {
        "effectonce.backends.redis.newest_first.MAX_SCAN_STEPS": 1,
        "effectonce.backends.redis.newest_first.SCAN_STEP_KEYS": 1,
    },
    "dynamodb": {
        "effectonce.backends.dynamodb.port.MAX_SORTED_SCANS": 1,
        "effectonce.backends.dynamodb.port.SCAN_ITEMS": 4,
    },
}
#: These choose what they sort: the records that expire, or were created, last.
SORT_THE_NEWEST = ("sqlite", "postgres", "mariadb")


@pytest.fixture(params=BOUNDS)
def store(request: pytest.FixtureRequest, unique_name: str, tmp_path: Path) -> Iterator[eo.Store]:
    """A store with ten records in one scope, `k0` to `k9`, done in that order."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/s.db"
    elif request.param == "dynamodb":
        url = table_url(request.getfixturevalue("dynamodb_url"), unique_name)
    else:
        url = request.getfixturevalue(f"{request.param}_url")
        option = "namespace" if request.param == "redis" else "prefix"
        url += f"{'&' if '?' in url else '?'}{option}={unique_name}"
    with eo.connect(url, sweep_every=None) as store:
        store.migrate()
        for n in range(10):
            eo.once(store, scope="s", key="key")(_identity).call(f"k{n}")
        yield store


def _identity(key: str) -> str:
    return key


@pytest.fixture
def bound(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: eo.Store) -> Callable[[], None]:
    def apply() -> None:
        for name, value in BOUNDS[request.node.callspec.params["store"]].items():
            monkeypatch.setattr(name, value)

    return apply


def by_last_change(store: eo.Store, scope: str = "s") -> list[str]:
    """The keys, the newest change first: as written, unless a clock was set in between. DynamoDB's is estimated."""
    prefix = {"s": "k", "doubts": "d"}[scope]
    records = [store.get(scope, f"{prefix}{n}") for n in range(10)]
    return [record.key for record in sorted(filter(None, records), key=lambda record: -record.changed_at)]


def keys(page: Page) -> list[str]:
    return [record.key for record in page.records]


@pytest.mark.parametrize("scope", [None, "s"])
def test_a_list_of_more_records_than_are_sorted_says_so(
    request: pytest.FixtureRequest, store: eo.Store, bound: Callable[[], None], scope: str | None
) -> None:
    newest = by_last_change(store)
    whole = store.list(scope=scope, newest_first=True)
    assert (keys(whole), whole.partial, whole.cursor) == (newest, False, None)
    name = request.node.callspec.params["store"]
    if name == "mariadb" and scope is None:
        pytest.skip("an index of MySQL has all records in the order of their last change")
    bound()
    part = store.list(scope=scope, newest_first=True)
    assert part.partial
    assert keys(part) == sorted(keys(part), reverse=True)
    assert len(part.records) < 10
    if name in SORT_THE_NEWEST:
        assert 4 <= len(part.records) <= 5
        assert keys(part) == newest[: len(part.records)]


def test_a_state_with_an_index_is_listed_completely(store: eo.Store, bound: Callable[[], None]) -> None:
    if store.capabilities.name == "postgresql":
        pytest.skip("PostgreSQL sorts what its index of these states has")
    guarded = eo.once(store, scope="doubts", key="key", on_error="doubt")(_fail)
    for n in range(6):
        with pytest.raises(TimeoutError):
            guarded(f"d{n}")
    bound()
    pages, cursor = [], None
    while True:
        page = store.list(state="in_doubt", newest_first=True, limit=4, cursor=cursor)
        assert not page.partial
        pages.append(keys(page))
        cursor = page.cursor
        if cursor is None:
            break
    newest = by_last_change(store, "doubts")
    assert pages == [newest[:4], newest[4:]]
    assert len(newest) == 6


def _fail(key: str) -> None:
    raise TimeoutError("no answer")


def test_options_that_contradict_each_other_are_refused() -> None:
    store = eo.connect("memory://")
    with pytest.raises(InvalidOption, match="leave out newest_first="):
        store.list(newest_first=True, after=("", "")) if store.capabilities.ordered else pytest.skip("unordered")
    with pytest.raises(InvalidOption, match="needs newest_first=True"):
        store.list(key_contains="x")
    for cursor in ("nonsense", "0:1:ab"):
        with pytest.raises(InvalidOption, match="start again without one"):
            store.list(newest_first=True, cursor=cursor)

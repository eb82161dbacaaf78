"""Whatever a request says, on every kind of store: an answer of ours, with all headers, and no markup of theirs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest

import effectonce as eo
from effectonce.dashboard.access import SECURITY_HEADERS, Access
from effectonce.dashboard.app import ACTIONS, make_app
from effectonce.dashboard.sources import Sources
from tests.dashboard.conftest import Visitor
from tests.dashboard.serving import OPERATOR

NASTY = [
    "\0",
    "a\0b",
    "\udcff",
    "%",
    "'; DROP TABLE effectonce_records; --",
    "k" * 20_000,
    "é\u202e\x1b[31m",
    "-1",
    "*",
]
CURSORS = ["\0", "garbage", "0:99999999:x", "9" * 40, "-1", "*", "0:1:"]
HTML = '"><img src=x onerror=alert(1)>\r\nset-cookie: a=b'


def visiting(url: str) -> Generator[Visitor]:
    """An operator at the dashboard of a store with a nasty record that is done, and one in doubt."""
    store = eo.connect(url, sweep_every=None)
    store.migrate()
    with eo.block(store, scope=f"scope {HTML}", key=f"key {HTML}") as block:
        assert block.first
        block.result = {"note": HTML}
    with pytest.raises(ValueError), eo.block(store, scope="doubt", key=f"doubt {HTML}", on_error="doubt"):
        raise ValueError(HTML)
    app = make_app(Sources(store), Access(operator=OPERATOR, hosts=["testserver"]))
    with Visitor(app, follow_redirects=False) as visitor:
        yield visitor.enter()
    store.close()


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Visitor]:
    yield from visiting(f"sqlite:///{tmp_path}/shop.db")


@pytest.mark.quick_on("sqlite", "postgres_url")
@pytest.mark.parametrize("server", ["sqlite", "postgres_url", "mariadb_url", "redis_url"])
def test_no_request_is_answered_by_a_defect(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """F65, F66: 4xx and a page of ours, never a 500, whatever is in the query."""
    odd = []
    url = f"sqlite:///{tmp_path}/shop.db" if server == "sqlite" else request.getfixturevalue(server)
    people = visiting(url)
    hand = next(people)
    for path in ("/records", "/record", "/outbox"):
        questions = [
            f"{name}={quote(value, errors='surrogatepass')}" for name, value in product(("key", "scope"), NASTY)
        ]
        questions += [f"scope=a&key={quote(value, errors='surrogatepass')}" for value in NASTY]
        questions += [f"state={state}&cursor={quote(value)}" for value in CURSORS for state in ("", "done")]
        questions += [f"scope=a&key=a*&cursor={quote(value)}" for value in CURSORS]
        for question in questions:
            answer = hand.get(f"{path}?{question}")
            is_protected = all(answer.headers.get(name) == value for name, value in SECURITY_HEADERS.items())
            if answer.status_code >= 500 or not is_protected:
                odd.append((path, question[:60], answer.status_code))
    people.close()
    assert odd == []


def test_no_form_is_answered_by_a_defect(hand: Visitor) -> None:
    odd = []
    for path, value in product(ACTIONS, NASTY):
        fields = dict.fromkeys(("scope", "key", "outcome", "result", "queue", "id", "seq"), value)
        answer = hand.act(path, **{name: quote(text, errors="surrogatepass") for name, text in fields.items()})
        raw = "&".join(f"{name}={quote(text, errors='surrogatepass')}" for name, text in fields.items())
        bare = hand.post(
            path,
            content=f"csrf={hand.csrf()}&{raw}",
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        odd += [(path, value[:20], response.status_code) for response in (answer, bare) if response.status_code >= 500]
    assert odd == []


def test_nothing_from_outside_is_markup(hand: Visitor) -> None:
    """F65: keys, scopes, results and errors are text, and make no header."""
    seen = ""
    for path in (
        "/",
        "/records",
        "/in-doubt",
        "/audit",
        f"/records?key={quote(HTML)}",
        f"/records?scope={quote(HTML)}",
    ):
        seen += hand.get(path).text
    for address in hand.links("/records", "/record"):
        answer = hand.get(address)
        assert answer.status_code == 200
        assert "a=b" not in answer.headers.get("set-cookie", "")
        seen += answer.text
    assert "onerror" in seen
    assert "<img src=x" not in seen

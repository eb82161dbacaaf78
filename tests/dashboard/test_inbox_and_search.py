"""The page of the inbox, and the search in the header."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from html import unescape

import httpx
import pytest

import effectonce as eo
from effectonce.dashboard.access import Access
from effectonce.dashboard.app import make_app
from effectonce.dashboard.sources import PAGE_SIZE, Sources
from tests.dashboard.conftest import Visitor
from tests.dashboard.serving import OPERATOR, VIEWER
from tests.dashboard.world import SCRIPT, World

DAY = 86_400_000_000


@pytest.fixture
def stocked(own: World) -> World:
    """The shop, and what it handled in transactions: order 1001 with a result, a full page of others, one expired."""
    with closing(sqlite3.connect(own.folder / "shop.db", isolation_level=None, timeout=10)) as connection:
        for n in range(PAGE_SIZE + 1):
            connection.execute("BEGIN")
            eo.Inbox(scope="stock").first(connection, f"other-{n}")
            connection.commit()
        # SQLite's clock counts milliseconds, and a quiet machine writes several rows in one.
        connection.execute("UPDATE effectonce_inbox SET created_at = created_at - 1000000")
        connection.execute("BEGIN")
        eo.Inbox(scope="stock").call(connection, "order-1001", lambda conn, key: {"shelf": SCRIPT})
        eo.Inbox(scope="mail").first(connection, f"order-1002:{SCRIPT}")
        eo.Inbox(scope="mail").first(connection, "gone")
        connection.execute(
            "UPDATE effectonce_inbox SET created_at = created_at - ?, expires_at = expires_at - ? WHERE key = 'gone'",
            (20 * DAY, 20 * DAY),
        )
        connection.commit()
        connection.execute("INSERT INTO effectonce_inbox_starts VALUES ('mail', 'tried', 2, 1, NULL, 9e15)")
    return own


@pytest.fixture
def visitor(stocked: World) -> Iterator[Visitor]:
    app = make_app(stocked.sources(), Access(operator=OPERATOR, viewer=VIEWER, hosts=["testserver"]))
    with Visitor(app, follow_redirects=False) as visitor:
        yield visitor.enter()


def text(visitor: Visitor, path: str, **query: str) -> str:
    answer = visitor.get(path, params=query)
    assert answer.status_code == 200, path
    return answer.text


def address(path: str, **query: str) -> str:
    return f"{path}?{httpx.QueryParams(query)}"


# -- the inbox


def test_the_inbox_lists_the_newest_first_page_by_page(visitor: Visitor) -> None:
    first = visitor.links("/inbox", "/inbox-message")
    assert len(first) == PAGE_SIZE
    assert "key=order-1001" in " ".join(first[:3])
    (more,) = [link for link in visitor.links("/inbox", "/inbox") if "cursor=" in link]
    rest = visitor.links(more, "/inbox-message")
    assert rest[-1] == address("/inbox-message", scope="stock", key="other-0")
    assert len({*first, *rest}) == PAGE_SIZE + 3


def test_the_inbox_is_filtered_by_state_scope_and_age(visitor: Visitor) -> None:
    def keys(**query: str) -> list[str]:
        links = visitor.links(address("/inbox", **query), "/inbox-message")
        return [httpx.URL(link).params["key"] for link in links]

    assert keys(state="expired") == ["gone"]
    assert keys(state="unfinished") == ["tried"]
    assert keys(scope="mail") == [f"order-1002:{SCRIPT}"]
    assert keys(scope="mail", older_than="1h") == []
    assert len(keys(newer_than="1h")) == PAGE_SIZE
    assert 'role="alert"' in text(visitor, "/inbox", newer_than="soon")


def test_a_message_is_shown_with_its_result_to_operators_only(stocked: World, visitor: Visitor) -> None:
    page = text(visitor, "/inbox-message", scope="stock", key="order-1001")
    assert "shelf" in page
    assert SCRIPT not in page
    assert SCRIPT in unescape(page)
    visitor.cookies.clear()
    seen = text(visitor.enter(VIEWER, "val"), "/inbox-message", scope="stock", key="order-1001")
    assert "shelf" not in seen
    assert "bytes, for operators only" in seen


def test_a_message_that_was_purged_is_a_404(visitor: Visitor) -> None:
    assert visitor.get("/inbox-message", params={"scope": "stock", "key": "nothing"}).status_code == 404


def test_a_store_without_an_inbox_says_how_to_name_one() -> None:
    sources = Sources(eo.connect("memory://", sweep_every=None))
    app = make_app(sources, Access(operator=OPERATOR, hosts=["testserver"]))
    with Visitor(app, follow_redirects=False) as visitor:
        assert "--inbox URL" in text(visitor.enter(), "/inbox")


# -- the search


def test_the_header_searches_everywhere(visitor: Visitor) -> None:
    assert 'action="/search"' in text(visitor, "/")


def test_a_search_links_to_each_thing_that_it_has_found(visitor: Visitor) -> None:
    page = address("/search", key="order-1001")
    assert visitor.links(page, "/inbox-message") == [address("/inbox-message", scope="stock", key="order-1001")]
    assert visitor.links(page, "/outbox") == [address("/outbox", state="parked")]
    records = visitor.links(page, "/record")
    assert {httpx.URL(link).params["scope"] for link in records} == {
        "intents/billing/twilio/sms",
        "orders/order.paid/billing",
    }
    for link in (*records, *visitor.links(page, "/inbox-message")):
        assert visitor.get(link).status_code == 200
    (saga,) = visitor.links(address("/search", key="order-2003"), "/saga")
    (dead,) = visitor.links(address("/search", key="order-3002"), "/dead-letter")
    assert visitor.get(saga).status_code == visitor.get(dead).status_code == 200


def test_a_search_finds_prefixes_and_shows_them_harmlessly(visitor: Visitor) -> None:
    page = text(visitor, "/search", key="order-1002*")
    assert SCRIPT not in page
    assert SCRIPT in unescape(page)
    assert "Nothing found" in text(visitor, "/search", key="order-1")


def test_an_empty_search_is_explained(visitor: Visitor) -> None:
    assert "search for a key" in text(visitor, "/search")


def test_a_viewer_sees_no_errors_of_dead_letters_in_a_search(visitor: Visitor) -> None:
    assert "ledger.internal" in text(visitor, "/search", key="order-3002")
    visitor.cookies.clear()
    seen = text(visitor.enter(VIEWER, "val"), "/search", key="order-3002")
    assert "ledger.internal" not in seen
    assert "attempts-exhausted" in seen


def test_a_search_names_the_place_that_could_not_be_asked(stocked: World) -> None:
    away = eo.connect("postgresql://nobody:secret@127.0.0.1:1/shop?connect_timeout=1s", sweep_every=None)
    sources = Sources(stocked.store, outbox=away, inbox_table="no_inbox", audit=stocked.audit)
    app = make_app(sources, Access(operator=OPERATOR, hosts=["testserver"]))
    with Visitor(app, follow_redirects=False) as visitor:
        visitor.enter()
        sources.discover_scopes()
        page = text(visitor, "/search", key="order-1001")
    assert page.count("could not be searched") == 2
    assert "orders/order.paid/billing" in page
    assert "secret" not in page

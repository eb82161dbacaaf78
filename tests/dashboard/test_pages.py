"""What the pages show, to whom, and what they never show (F65, F66)."""

from __future__ import annotations

import re
import time
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import prometheus_client
import pytest
from msgspec.structs import replace

import effectonce as eo
from effectonce.dashboard.access import Access
from effectonce.dashboard.app import PAGES, make_app
from effectonce.dashboard.poller import Poller, Sample, count_events
from effectonce.dashboard.saga_graph import draw
from effectonce.dashboard.sources import PAGE_SIZE, Sources
from effectonce.display.state_filters import STATE_FILTERS
from effectonce.doctor import DoctorFinding
from effectonce.errors import ConfigurationError, InvalidOption
from effectonce.sagas.log import SagaLog
from effectonce.telemetry.prometheus import Metrics
from tests.dashboard.conftest import Visitor
from tests.dashboard.serving import OPERATOR, VIEWER
from tests.dashboard.world import SCRIPT, World

ALONE = ("/record", "/saga", "/inbox-message", "/dead-letter", "/overview.json")


def text(visitor: Visitor, path: str) -> str:
    answer = visitor.get(path)
    assert answer.status_code == 200, path
    return unescape(answer.text)


def test_every_page_answers_both_roles(operator: Visitor) -> None:
    for path in PAGES:
        if path not in ALONE:
            assert "<h1>" in text(operator, path)


def test_a_viewer_sees_the_same_pages(viewer: Visitor) -> None:
    for path in PAGES:
        if path not in ALONE:
            assert "<h1>" in text(viewer, path)


def test_the_overview_shows_what_needs_attention(operator: Visitor) -> None:
    operator.app.state.dashboard.poller.poll()  # type: ignore[attr-defined]
    page = text(operator, "/")
    assert "in doubt, the oldest for" in page
    assert "parked in the outbox" in page
    assert "dead letters of billing/orders" in page


def test_the_overviews_figures_come_as_json(operator: Visitor) -> None:
    for _ in range(2):
        operator.app.state.dashboard.poller.poll()  # type: ignore[attr-defined]
    facts = operator.get("/overview.json").json()
    series = facts["series"]
    assert {len(values) for values in series.values()} == {len(series["at"])}
    assert series["in_doubt"][-1] == 5
    assert series["outbox_lag"][-1] > 1700
    assert series["deliveries"][-1] is None, "no --metrics was given"
    assert {"state": "in_doubt", "count": "5"} in facts["states"]


# -- records


def keys_on(visitor: Visitor, path: str) -> list[str]:
    """The keys that a list shows, in their order."""
    return [parse_qs(link.partition("?")[2])["key"][0] for link in visitor.links(path, "/record")]


def test_records_are_found_by_a_whole_key_in_any_scope(operator: Visitor) -> None:
    (link,) = operator.links("/records?key=order-1003", "/record")
    assert link.endswith("scope=orders%2Forder.paid%2Fbilling&key=order-1003")


def test_records_are_found_by_a_part_of_their_key_the_whole_key_first(operator: Visitor) -> None:
    assert keys_on(operator, "/records?key=er-100") == [f"order-100{n}" for n in reversed(range(10))]
    assert keys_on(operator, "/records?key=pay_000&scope=charge-card&state=done")[0] == "pay_0009"
    assert keys_on(operator, "/records?key=pay_000&scope=charge-card&state=failed") == []
    assert keys_on(operator, "/records?key=no+such+key") == []


def test_an_intent_is_found_by_the_key_that_the_program_gave(operator: Visitor, world: World) -> None:
    page = text(operator, "/records?key=order-107&scope=intents/billing/twilio/sms")
    assert "for order-107" in page
    assert len(keys_on(operator, "/records?key=order-107")) == 1
    without_programs = Sources(eo.connect(world.url, sweep_every=None))
    without_programs.discover_scopes()
    (record,) = without_programs.search("order-107", "", None, None).records
    assert record.scope == "intents/billing/twilio/sms"
    without_programs.close()


def test_lists_begin_with_the_newest_change(operator: Visitor) -> None:
    keys = keys_on(operator, "/records?scope=orders/order.paid/billing&state=done")
    assert keys == [f"order-{1000 + n}" for n in reversed(range(24))]
    assert keys_on(operator, "/records?scope=charge-card")[0] == "pay_doubtful", "the last one that was made"
    sagas = [parse_qs(link.partition("?")[2])["key"][0] for link in operator.links("/sagas?which=all", "/saga")]
    assert [key for key in sagas if key != "order-2006"] == [f"order-{n}" for n in (2005, 2004, 2003, 2002, 2001)]


def test_a_store_that_sorts_only_a_part_of_its_records_says_so(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Some records may be missing" not in text(operator, "/records")
    monkeypatch.setattr("effectonce.backends.sqlite.record_reader.MAX_SORTED_RECORDS", 5)
    assert "Some records may be missing" in text(operator, "/records?scope=charge-card")
    (path,) = operator.links("/records?scope=charge-card", "/records")
    assert parse_qs(path.partition("?")[2]) == {"scope": ["charge-card"], "order": ["stored"]}
    seen: list[str] = []
    while path:
        seen += keys_on(operator, path)
        following = [link for link in operator.links(path, "/records") if "cursor" in link]
        path = following[0] if following else ""
    assert len(seen) == len(set(seen)) == 65
    assert len(keys_on(operator, "/records?key=_003&scope=charge-card&order=stored")) == 10


# -- failed, and refused by a business rule


def test_what_a_business_rule_refused_is_not_called_failed(operator: Visitor) -> None:
    page = operator.get("/record?scope=charge-card&key=pay_declined").text
    assert '<span class="state s-refused">refused</span>' in page
    assert "Refused with" in page
    exhausted = operator.get("/record?scope=orders/order.paid/billing&key=order-3001").text
    assert "s-refused" not in exhausted
    assert keys_on(operator, "/records?state=refused") == ["pay_declined"]
    assert "pay_declined" not in keys_on(operator, "/records?state=failed")
    both = keys_on(operator, "/records?state=failed_or_refused")
    assert sorted(both) == sorted(
        [*keys_on(operator, "/records?state=refused"), *keys_on(operator, "/records?state=failed")]
    )


# -- filters


def test_filters_survive_an_item_and_a_decision(hand: Visitor) -> None:
    listed = "/records?scope=charge-card&state=in_doubt"
    (item,) = hand.links(listed, "/record")
    assert listed in [unescape(link) for link in re.findall('href="([^"]*)"', hand.get(item).text)]
    back = parse_qs(item.partition("?")[2])["back"][0]
    answer = hand.act("/in-doubt/resolve", scope="charge-card", key="pay_doubtful", outcome="done", back=back)
    assert answer.status_code == 303
    assert parse_qs(answer.headers["location"].partition("?")[2])["back"] == [listed]


def test_filters_survive_the_pages_of_a_list(operator: Visitor) -> None:
    (following,) = [
        link for link in operator.links("/records?scope=charge-card&state=done", "/records") if "cursor" in link
    ]
    asked = parse_qs(following.partition("?")[2])
    assert (asked["scope"], asked["state"]) == (["charge-card"], ["done"])
    (item, *_) = operator.links(following, "/record")
    assert parse_qs(item.partition("?")[2])["back"] == [following]


@pytest.mark.parametrize(
    "forged", ["https://evil.example/records", "//evil.example", "javascript:alert(1)", "/records/../audit"]
)
def test_the_link_back_never_leaves_the_dashboard(operator: Visitor, forged: str) -> None:
    page = operator.get("/record", params={"scope": "charge-card", "key": "pay_0001", "back": forged}).text
    assert forged not in page


def test_records_in_doubt_are_filtered_by_scope(operator: Visitor) -> None:
    assert set(keys_on(operator, "/in-doubt?scope=charge-card")) == {"pay_doubtful"}
    assert "Nothing is in doubt in this scope" in text(operator, "/in-doubt?scope=orders")
    assert "start again without one" in text(operator, "/in-doubt?cursor=nonsense")


@pytest.mark.parametrize("path", ["/records?key=none", "/sagas?which=in_doubt", "/outbox?state=waiting"])
def test_an_empty_page_says_what_will_be_there(path: str) -> None:
    app = make_app(Sources(eo.connect("memory://")), Access(operator=OPERATOR, hosts=["testserver"]))
    with Visitor(app, follow_redirects=False) as visitor:
        assert 'class="empty"' in visitor.enter().get(path).text
        assert "leaves a record here when it first runs" in text(visitor, "/records")
        assert "A record comes here when" in text(visitor, "/in-doubt")


def test_records_are_found_by_the_beginning_of_a_key(operator: Visitor) -> None:
    links = operator.links("/records?key=pay_003*&scope=charge-card", "/record")
    assert [link.rpartition("=")[2] for link in links] == [f"pay_003{n}" for n in range(10)]
    exact = operator.links("/records?key=pay_0030*&scope=charge-card", "/record")
    assert [link.rpartition("=")[2] for link in exact] == ["pay_0030"]
    assert len(operator.links("/records?key=order-10*", "/record")) == 24, "in all scopes that are known"
    assert operator.links("/records?key=pay_003*&scope=charge-card&state=failed", "/record") == []


def test_records_are_found_by_state(operator: Visitor) -> None:
    assert keys_on(operator, "/records?state=failed") == ["order-2004"]
    assert operator.get("/records?state=nonsense").status_code == 400


def test_paging_reaches_every_record_once(operator: Visitor) -> None:
    path, seen = "/records?scope=charge-card", []
    while path:
        assert len(operator.links(path, "/record")) <= PAGE_SIZE
        seen += operator.links(path, "/record")
        following = [link for link in operator.links(path, "/records") if "cursor" in link]
        path = following[0] if following else ""
    assert len(seen) == len(set(seen)) == 65


def test_a_bad_cursor_is_an_error_message(operator: Visitor) -> None:
    assert "start again without one" in text(operator, "/records?cursor=nonsense")


def test_a_timeline_shows_who_and_when(operator: Visitor) -> None:
    page = text(operator, "/record?scope=charge-card&key=pay_declined")
    for word in ("first seen", "claimed", "owner 0d0d0d0d", "first attempt", "refused", "expires"):
        assert word in page
    path = next(link for link in operator.links("/in-doubt", "/record") if "twilio" in link)
    assert "sent to twilio" in text(operator, path)


def test_a_missing_record_is_not_found(operator: Visitor) -> None:
    assert operator.get("/record?scope=charge-card&key=never").status_code == 404
    assert operator.get("/saga?scope=saga%2Forder-fulfilment&key=never").status_code == 404
    assert operator.get("/saga?scope=charge-card&key=pay_0001").status_code == 404
    assert operator.get("/record").status_code == 400
    assert operator.get("/dead-letter?queue=billing/orders&id=99").status_code == 400
    assert operator.get("/nowhere").status_code == 404


# -- what only operators see, and what is never shown


SECRETS = {
    "/record?scope=charge-card&key=pay_0001": "rc_1",
    "/record?scope=charge-card&key=pay_declined": "card 4242",
    "/saga?scope=saga%2Forder-fulfilment&key=order-2005": "tok_secret_of_operators",
    "/saga?scope=saga%2Forder-fulfilment&key=order-2001": "parcel 99",
    "/in-doubt": "the bank hung up",
    "/outbox": "over the limit of 262144",
    "/dead-letters": "ledger.internal",
    "/dead-letter?queue=billing%2Forders&id=1": '"order"',
    "/dead-letter?queue=billing%2Forders&id=2": "Traceback (most recent call last)",
}


@pytest.mark.parametrize(("path", "secret"), SECRETS.items())
def test_payloads_and_results_are_for_operators(anyone: Visitor, path: str, secret: str) -> None:
    for token, shown in ((OPERATOR, True), (VIEWER, False)):
        anyone.cookies.clear()
        assert (secret in text(anyone.enter(token), path)) is shown


def test_a_request_is_for_operators(anyone: Visitor) -> None:
    for token, shown in ((OPERATOR, True), (VIEWER, False)):
        anyone.cookies.clear()
        path = next(link for link in anyone.enter(token).links("/in-doubt", "/record") if "twilio" in link)
        assert ("Your parcel is on its way" in text(anyone, path)) is shown


def test_keys_are_rendered_as_text(operator: Visitor) -> None:
    """F65: markup, line ends and terminal codes in a key."""
    page = operator.get("/records?key=pay_<*&scope=charge-card").text
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\r\\n\\x1b[31m" in page
    (path,) = operator.links("/records?key=pay_<*&scope=charge-card", "/record")
    one = operator.get(path).text
    assert SCRIPT not in one
    assert "\x1b" not in one
    asked = operator.get("/records", params={"key": '"><script>alert(2)</script>', "scope": "'\"><b>"}).text
    assert "<script>alert(2)" not in asked
    assert "<b>" not in asked.partition("<main")[2]


def test_secrets_in_urls_are_never_rendered() -> None:
    """F66: a canary password in every URL that the dashboard is given, with servers that do not answer."""
    canary = "c4nary-pa55word"
    away = f"postgresql://ada:{canary}@127.0.0.1:1/shop?timeout=200ms"
    sources = Sources(
        eo.connect(away),
        broker=eo.connect_broker(f"amqp://ada:{canary}@127.0.0.1:1/"),
        queues=["orders"],
        outbox=eo.connect(away),
        metrics=[f"http://ada:{canary}@127.0.0.1:1/metrics"],
    )
    app = make_app(sources, Access(operator=OPERATOR, viewer=VIEWER, hosts=["testserver"]))
    with Visitor(app, follow_redirects=False) as visitor:
        visitor.enter()
        app.state.dashboard.poller.poll()
        for path in (*PAGES, "/record?scope=a&key=b", "/saga?scope=a&key=b", "/dead-letters?queue=worker/orders"):
            answer = visitor.get(path)
            assert canary not in answer.text, path
            assert "Traceback" not in answer.text
        assert "does not answer" in text(visitor, "/")
        assert visitor.get("/records").status_code == 503


def test_a_defect_page_shows_no_details(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("postgresql://ada:c4nary@db")

    monkeypatch.setattr(Sources, "search", broken)
    answer = operator.get("/records")
    assert answer.status_code == 500
    assert "c4nary" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_private_stores_keys_stay_hidden(tmp_path: Path) -> None:
    store = eo.connect(f"sqlite:///{tmp_path}/private.db", private="a secret of the shop's", sweep_every=None)

    @eo.once(store, scope="mail", key="address", on_error="doubt")
    def mail(address: str) -> str:
        if "doubt" in address:
            raise ConnectionError(address)
        return f"sent to {address}"

    mail("ada@example.org")
    with pytest.raises(ConnectionError):
        mail("doubt@example.org")
    app = make_app(Sources(store), Access(operator=OPERATOR, viewer=VIEWER, hosts=["testserver"]))
    with Visitor(app, follow_redirects=False) as visitor:
        visitor.enter()
        app.state.dashboard.poller.poll()
        assert "@example.org" not in text(visitor, "/records") + text(visitor, "/in-doubt")
        (link,) = visitor.links("/records?key=ada@example.org", "/record")
        assert "ada" not in link.partition("scope=")[2]
        assert "sealed" in text(visitor, link)
        (doubt,) = set(visitor.links("/in-doubt", "/record"))
        hidden = doubt.rpartition("=")[2]
        refused = visitor.act("/in-doubt/resolve", scope="mail", key=hidden, outcome="done", result='"x"')
        assert refused.status_code == 400, "an unsealed result could not be read by the program"
        assert visitor.act("/in-doubt/resolve", scope="mail", key=hidden, outcome="retry").status_code == 303
    record = store.get("mail", "doubt@example.org")
    assert record is not None
    assert record.state == "free"
    store.close()


# -- sagas


def test_a_sagas_graph_shows_the_way_it_went(world: World) -> None:
    sources = world.sources()
    record = world.saga.get("order-2005")
    assert record is not None
    log = sources.log(record)
    assert isinstance(log, SagaLog)
    drawing = draw(log, record.state, {"reserve", "charge"})
    shown = {(node.title, node.state) for node in drawing.nodes}
    assert shown == {
        ("reserve", "done"),
        ("charge", "done"),
        ("ship", "failed"),
        ("undo charge", "in_doubt"),
        ("undo reserve", "pending"),
        ("done", "pending"),
        ("failed", "pending"),
    }
    assert all(node.x >= 0 and node.x + node.width <= drawing.width for node in drawing.nodes)
    assert all(node.y + node.height <= drawing.height for node in drawing.nodes)
    assert sum(edge.taken for edge in drawing.edges) == 3, "down to ship, and from there to the first compensation"


def test_sagas_are_found_without_their_program(world: World) -> None:
    sources = Sources(eo.connect(world.url, sweep_every=None))
    sources.discover_scopes()
    assert "saga/order-fulfilment" in sources.scopes
    sources.close()


# -- doctor, audit, sources


def test_doctors_findings_are_shown(operator: Visitor) -> None:
    page = text(operator, "/doctor")
    for word in ("outbox-parked", "in-doubt", "dead-letters", "effectonce outbox unpark"):
        assert word in page


def test_doctor_says_what_it_checked_without_a_finding(operator: Visitor, world: World) -> None:
    page = text(operator, "/doctor")
    passed = [check for check in world.sources().examine().checks if not check.findings]
    assert {"clock", "sweeper"} <= {check.name for check in passed}
    assert all(check.name in page for check in passed)


def test_a_finding_is_shown_once(world: World) -> None:
    findings: list[DoctorFinding] = world.sources().examine().findings
    assert len({(finding.code, finding.about) for finding in findings}) == len(findings)


def test_the_audit_log_is_shown(operator: Visitor) -> None:
    page = text(operator, "/audit")
    assert "cron@night" in page
    assert "214 deleted" in page


def test_a_dashboard_needs_a_store() -> None:
    with pytest.raises(ConfigurationError, match="--store"):
        Sources()


def test_metrics_are_read_by_http_only() -> None:
    with pytest.raises(ConfigurationError, match="http"):
        Sources(eo.connect("memory://"), metrics=["file:///etc/hostname"])


def test_postgres_is_searched_as_sqlite_is(postgres_url: str, unique_name: str) -> None:
    store = eo.connect(f"{postgres_url}?prefix={unique_name}", sweep_every=None)
    store.migrate()

    @eo.once(store, scope="mail", key="n")
    def mail(n: str) -> str:
        return n

    @eo.once(store, scope="post", key="n")
    def post(n: str) -> str:
        return n

    for n in ("a", "ab", "abc", "b"):
        mail(n)
    post("abd")
    sources = Sources(store)
    sources.discover_scopes()
    assert sources.scopes == ["mail", "post"]
    assert [record.key for record in sources.search("ab*", "mail", None, None).records] == ["ab", "abc"]
    assert [record.key for record in sources.search("ab*", "", STATE_FILTERS["done"], None).records] == [
        "ab",
        "abc",
        "abd",
    ]
    assert [record.scope for record in sources.search("abd", "", None, None).records] == ["post"]
    sources.close()
    store.close()


def test_a_queue_needs_a_broker() -> None:
    with pytest.raises(ConfigurationError, match="--broker"):
        Sources(eo.connect("memory://"), queues=["orders"])


def test_a_store_without_order_is_searched_by_whole_keys(redis_url: str, unique_name: str) -> None:
    store = eo.connect(f"{redis_url}?namespace={unique_name}", sweep_every=None)

    @eo.once(store, scope="mail", key="address")
    def mail(address: str) -> str:
        return "sent"

    mail("ada")
    sources = Sources(store)
    with pytest.raises(InvalidOption, match="no order"):
        sources.search("a*", "mail", None, None)
    assert [record.key for record in sources.search("ada", "mail", None, None).records] == ["ada"]
    sources.remember_scopes(sources.search("", "mail", None, None).records)
    assert [record.key for record in sources.search("ada", "", None, None).records] == ["ada"]
    sources.close()
    store.close()


# -- the poller


def rates(poller: Poller) -> dict[str, float | None]:
    """What the plots show of its two samples, as if a second lay between them."""
    first, second = poller.samples
    poller.samples[1] = replace(second, at=first.at + 1)
    return {name: poller.series()[name][0] for name in ("deliveries", "first_runs", "duplicates")}


def test_events_are_read_from_a_page_of_metrics() -> None:
    page = (
        "# HELP effectonce_outcomes_total What happened\n# TYPE effectonce_outcomes_total counter\n"
        'effectonce_outcomes_total{scope="a,kind=\\"x\\"",kind="claimed"} 12.0\n'
        'effectonce_outcomes_total{kind="replayed",scope="b"} 1e3 1700000000000\n'
        'effectonce_outcomes_created{kind="replayed"} 1.7e9\nbroken{ 1\neffectonce_outcomes_total 5\n'
    )
    assert count_events(page) == {"claimed": 12.0, "replayed": 1000.0}


def test_rates_come_from_the_workers_metrics(tmp_path: Path) -> None:
    """The real metrics of a real store, over HTTP; a count that falls has restarted."""
    store = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None)
    registry = prometheus_client.CollectorRegistry()
    Metrics(registry).watch(store)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)

    @eo.once(store, scope="mail", key="n")
    def mail(n: int) -> int:
        return n

    try:
        poller = Poller(Sources(store, metrics=[f"http://127.0.0.1:{server.server_port}/metrics"]))
        poller.poll()
        for n in (1, 2, 3, 1, 2):
            mail(n)
        poller.poll()
        assert rates(poller) == {"deliveries": 5, "first_runs": 3, "duplicates": 2}
        poller._sources.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        store.close()


def test_a_worker_that_restarts_or_comes_and_goes_makes_no_spike() -> None:
    """Summed up over all workers, the count of one that is gone looked like as many new events of the others."""
    poller = Poller(Sources(eo.connect("memory://")))
    a, b = {"replayed": 1000.0}, {"replayed": 5000.0}
    for at, totals in enumerate(
        ({"a": a, "b": b}, {"a": {"replayed": 1010.0}}, {"a": {"replayed": 1020.0}, "b": b}, {"b": {"replayed": 3.0}})
    ):
        poller.samples.append(Sample(at=at * 10.0, totals=totals))
    assert poller.series()["duplicates"] == [1.0, 1.0, 0.3]


def test_without_metrics_first_runs_are_counted_by_the_store(tmp_path: Path) -> None:
    store = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None)

    @eo.once(store, scope="mail", key="n")
    def mail(n: int) -> int:
        return n

    poller = Poller(Sources(store))
    poller.poll()
    for n in (1, 2, 1):
        mail(n)
    poller.poll()
    assert rates(poller) == {"deliveries": None, "first_runs": 2, "duplicates": None}
    poller._sources.close()
    store.close()


def test_an_unreachable_source_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    store = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None)
    poller = Poller(Sources(store, metrics=["http://127.0.0.1:1/metrics"]))
    poller.poll()
    sample: Any = poller.sample()
    assert list(poller.errors) == ["worker at 127.0.0.1:1"]
    assert sample.stats is not None
    assert time.time() - sample.at < 60
    poller._sources.close()
    store.close()

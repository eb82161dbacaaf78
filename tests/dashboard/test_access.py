"""Who gets in, and who may act: every route of the table, F64."""

from __future__ import annotations

import re
import time
from html import escape

import pytest
from starlette.routing import Mount, Route

from effectonce.dashboard import access as accesses
from effectonce.dashboard.access import Access, require_safe_bind
from effectonce.dashboard.app import ACTIONS, PAGES, make_app
from effectonce.errors import ConfigurationError
from tests.dashboard.conftest import Visitor
from tests.dashboard.serving import OPERATOR, VIEWER
from tests.dashboard.world import World

#: The session's cookie, of the port that the test client says it is at.
COOKIE = "effectonce_session_80"

OPEN = {"/login", "/static"}


def table(visitor: Visitor) -> dict[str, set[str]]:
    """Every route of the application, and its methods."""
    routes: dict[str, set[str]] = {}
    for route in visitor.app.routes:  # type: ignore[attr-defined]
        assert isinstance(route, Route | Mount)
        routes[route.path] = set() if isinstance(route, Mount) else set(route.methods or ())
    return routes


def mutating(visitor: Visitor) -> list[str]:
    """The routes that take anything but a GET. Logging in is how one gets the token that the others ask for."""
    return [path for path, methods in table(visitor).items() if methods - {"GET", "HEAD"} and path != "/login"]


def before(world: World) -> list[object]:
    """All that an action could change."""
    store = world.store
    records = [store.list(limit=1000).records]
    return [
        records,
        world.sources().outbox_rows("parked", None),
        world.sources().dead_letter_queues["billing/orders"].count(),
    ]


# -- the routing table


def test_the_table_holds_what_is_tested_here(stranger: Visitor) -> None:
    assert set(table(stranger)) == {*PAGES, *ACTIONS, *OPEN, "/logout"}
    assert set(mutating(stranger)) == {*ACTIONS, "/logout"}
    assert all("POST" not in table(stranger)[path] for path in PAGES)


def test_a_login_leads_to_the_page_that_was_asked_for(stranger: Visitor) -> None:
    asked = "/records?scope=charge-card&state=refused"
    address = stranger.get(asked).headers["location"]
    assert f'name="to" value="{escape(asked)}"' in stranger.get(address).text
    login = {"who": "ada", "token": OPERATOR}
    assert stranger.post("/login", data={**login, "to": asked}).headers["location"] == asked
    for forged in ("https://evil.example/records", "//evil.example", "/static/../evil", ""):
        assert stranger.post("/login", data={**login, "to": forged}).headers["location"] == "/"


def test_no_page_shows_anything_to_a_stranger(stranger: Visitor) -> None:
    for path in PAGES:
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login"), path
    assert stranger.get("/overview.json", headers={"accept": "application/json"}).status_code == 401


def test_every_mutating_route_refuses_without_a_token(stranger: Visitor, world: World) -> None:
    was = before(world)
    for path in mutating(stranger):
        assert stranger.post(path, data={"csrf": "0" * 64}).status_code == 401, path
    stranger.cookies.set(COOKIE, "made.up")
    for path in mutating(stranger):
        assert stranger.post(path, data={"csrf": "0" * 64}).status_code == 401, path
    assert before(world) == was


def test_every_mutating_route_refuses_a_viewer(viewer: Visitor, world: World) -> None:
    was, token = before(world), viewer.csrf()
    for path in ACTIONS:
        assert viewer.post(path, data={"csrf": token}).status_code == 403, path
    assert before(world) == was


def test_every_mutating_route_refuses_without_csrf(operator: Visitor, world: World) -> None:
    was = before(world)
    for path in mutating(operator):
        for form in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "é"}):
            assert operator.post(path, data=form).status_code == 403, path
        assert operator.post(path, json={"csrf": operator.csrf()}).status_code == 403, path
    assert before(world) == was


def test_the_token_of_another_session_is_refused(operator: Visitor) -> None:
    other = operator.csrf()
    operator.cookies.clear()
    operator.enter(who="grace")
    assert operator.csrf() != other
    for path in mutating(operator):
        assert operator.post(path, data={"csrf": other}).status_code == 403, path


@pytest.mark.parametrize(
    "header", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_every_mutating_route_refuses_the_page_of_another(operator: Visitor, header: dict[str, str]) -> None:
    token = operator.csrf()
    for path in mutating(operator):
        assert operator.post(path, data={"csrf": token}, headers=header).status_code == 403, path


def test_the_mutating_routes_take_no_get(operator: Visitor) -> None:
    for path in mutating(operator):
        assert operator.get(path).status_code == 405, path


# -- sessions


def test_a_wrong_token_opens_nothing(stranger: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectonce.dashboard.app.WRONG_TOKEN_DELAY_S", 0)
    for token in (
        "",
        "wrong",
        OPERATOR[:-1],
        OPERATOR + "x",
        "ü\udcff".encode("utf-8", "surrogatepass").decode("latin-1"),
    ):
        answer = stranger.post("/login", data={"who": "eve", "token": token})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


def test_a_login_needs_a_name(stranger: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit log names who did it."""
    monkeypatch.setattr("effectonce.dashboard.app.WRONG_TOKEN_DELAY_S", 0)
    assert stranger.post("/login", data={"who": "  ", "token": OPERATOR}).status_code == 401


def test_the_cookie_is_kept_from_scripts_and_other_sites(stranger: Visitor) -> None:
    cookie = stranger.post("/login", data={"who": "ada", "token": OPERATOR}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert OPERATOR not in cookie


def test_a_cookie_that_was_changed_is_refused(operator: Visitor) -> None:
    cookie = operator.cookies[COOKIE]
    operator.cookies.clear()
    for changed in (
        f"x{cookie}",
        cookie[:-1] + ("0" if cookie[-1] != "0" else "1"),
        cookie[:-1],
        ".",
        "é",
    ):
        assert operator.get("/", headers={"cookie": f"{COOKIE}={changed}".encode()}).status_code == 303


def test_two_dashboards_on_one_machine_do_not_end_each_others_sessions(world: World) -> None:
    """Browsers send the cookies of one host to all of its ports."""
    people = []
    for port in (8765, 8766):
        app = make_app(world.sources(), Access(operator=OPERATOR, hosts=["127.0.0.1"]))
        people.append(Visitor(app, f"http://127.0.0.1:{port}", follow_redirects=False))
    for visitor in people:
        visitor.cookies = people[0].cookies
        visitor.enter()
    assert [visitor.get("/audit").status_code for visitor in people] == [200, 200]


def test_a_session_ends(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.time() + accesses.SESSION_LIFETIME_S + 1
    monkeypatch.setattr("effectonce.dashboard.access.time.time", lambda: later)
    assert operator.get("/").status_code == 303


def test_a_session_that_was_logged_out_is_over(operator: Visitor) -> None:
    cookie = operator.cookies[COOKIE]
    assert operator.act("/logout").status_code == 303
    assert operator.get("/", headers={"cookie": f"{COOKIE}={cookie}"}).status_code == 303


def test_viewers_may_log_out_too(viewer: Visitor) -> None:
    assert viewer.act("/logout").status_code == 303


def test_tokens_are_long_and_differ() -> None:
    with pytest.raises(ConfigurationError, match="16 characters"):
        Access(operator="short")
    with pytest.raises(ConfigurationError, match="its own"):
        Access(operator=OPERATOR, viewer=OPERATOR)
    assert Access(operator=OPERATOR).log_in(VIEWER, "val") is None


# -- what every answer carries


def test_every_answer_forbids_frames_inline_code_and_caching(operator: Visitor) -> None:
    for path in (*PAGES, "/login", "/nowhere", "/static/dashboard.css"):
        headers = operator.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
        assert path.startswith("/static/") or headers["cache-control"] == "no-store", path


def test_no_page_has_inline_code_or_asks_another_host(operator: Visitor) -> None:
    pages = [*PAGES, "/login", *operator.links("/in-doubt", "/record")[:1], *operator.links("/in-doubt", "/saga")[:1]]
    for path in pages:
        text = operator.get(path).text
        assert not re.search(r"<script(?! src=\"/static/)|<style| style=| on[a-z]+=\"|javascript:", text), path
        assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", text), path


def test_a_foreign_host_name_is_refused(operator: Visitor) -> None:
    """DNS rebinding: the browser sends the attacker's name."""
    for host in ("evil.example", "evil.example:80", "", "testserver.evil.example", "[::", "127.0.0.1"):
        assert operator.get("/", headers={"host": host}).status_code == 421, host
    assert operator.get("/", headers={"host": "TESTSERVER:8765"}).status_code == 200


def test_a_form_that_is_too_large_is_refused(operator: Visitor) -> None:
    assert operator.post("/in-doubt/resolve", content=b"csrf=" + b"0" * 1_100_000).status_code == 413


# -- where it listens


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_flag(host: str) -> None:
    require_safe_bind(host, remote=False, token_given=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "127.0.0.1.evil.example", ""])
def test_other_machines_need_a_flag_and_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="--allow-remote"):
        require_safe_bind(host, remote=False, token_given=True)
    with pytest.raises(ConfigurationError, match="EFFECTONCE_DASHBOARD_TOKEN"):
        require_safe_bind(host, remote=True, token_given=False)
    require_safe_bind(host, remote=True, token_given=True)

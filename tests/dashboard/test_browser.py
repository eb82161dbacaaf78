"""An operator's night in a real Chromium, with the mouse, the keyboard and a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.conftest import skip_or_fail
from tests.dashboard.serving import OPERATOR, VIEWER, browser, executable, log_in, served
from tests.dashboard.world import World
from tests.harness.installed import Missing


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    try:
        executable()
    except Missing as missing:
        skip_or_fail(str(missing))
    with sync_playwright() as playwright, browser(playwright) as chromium:
        yield chromium


@pytest.fixture(scope="module")
def night(world: World) -> Iterator[tuple[World, str]]:
    with served(world.sources()) as address:
        yield world, address


@pytest.fixture(scope="module")
def sessions(chromium: Any, night: tuple[World, str]) -> dict[str, Any]:
    """The cookies of those who have logged in, through the form."""
    states = {}
    for role, token, who in (("operator", OPERATOR, "ada"), ("viewer", VIEWER, "val")):
        page = chromium.new_page()
        log_in(page, night[1], token, who)
        states[role] = page.context.storage_state()
        page.close()
    return states


@pytest.fixture
def page(request: pytest.FixtureRequest, chromium: Any, night: tuple[World, str]) -> Iterator[Page]:
    """A page whose complaints fail the test: a blocked script, an error, a request to another host."""
    role = getattr(request, "param", "operator")
    state = request.getfixturevalue("sessions")[role] if role else None
    context = chromium.new_context(storage_state=state, base_url=night[1])
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: None if request.url.startswith(night[1]) else complaints.append(request.url))
    yield opened
    context.close()
    assert [complaint for complaint in complaints if "status of 401" not in complaint] == []


@pytest.mark.parametrize("page", [""], indirect=True)
def test_a_wrong_token_stays_outside(page: Page) -> None:
    page.goto("/")
    page.get_by_label("Your name").fill("eve")
    page.get_by_label("Token").fill("not-the-token-of-anybody")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")


def test_the_plots_are_live(page: Page) -> None:
    page.goto("/")
    page.wait_for_selector("[data-state=live]")
    expect(page.locator("[data-plot=in_doubt] output")).to_have_text(re.compile(r"[0-9]"), timeout=15_000)
    assert page.locator("[data-plot=in_doubt] .line").get_attribute("d")
    expect(page.locator("[data-plot=deliveries]")).to_contain_text("--metrics")


def test_a_search_by_keyboard(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("/")
    expect(page.get_by_label("Find an order everywhere")).to_be_focused()
    page.keyboard.type("order-1003")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Search order-1003")
    expect(page.locator("tbody tr", has_text="outbox")).to_have_count(1)
    page.locator("tbody tr", has_text="record").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("order-1003")
    expect(page.locator(".timeline")).to_contain_text("claimed")


def test_a_filter_survives_an_item_a_reload_and_the_way_back(page: Page) -> None:
    page.goto("/records")
    page.get_by_label("Scope").fill("charge-card")
    page.get_by_label("State").select_option("refused")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="pay_declined").click()
    expect(page.locator(".head .state")).to_have_text("refused")
    page.reload()
    page.get_by_role("main").get_by_role("link", name="Records").click()
    expect(page.get_by_label("Scope")).to_have_value("charge-card")
    expect(page.get_by_label("State")).to_have_value("refused")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Clear").click()
    expect(page.get_by_label("State")).to_have_value("")


def test_refused_has_a_colour_of_its_own(page: Page) -> None:
    page.goto("/records?state=failed_or_refused")
    colours = {
        state: page.locator(f".s-{state}").first.evaluate("state => getComputedStyle(state).color")
        for state in ("failed", "refused")
    }
    assert colours["failed"] != colours["refused"]


def test_times_are_relative_with_the_exact_time_on_hover(page: Page) -> None:
    page.goto("/records")
    time = page.locator("tbody time").first
    expect(time).to_have_text(re.compile("ago$"))
    expect(time).to_have_attribute("title", re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$"))
    page.locator("tbody a.key").first.click()
    moment = page.locator(".timeline time").first
    expect(moment).to_contain_text("ago")
    expect(moment).to_have_attribute("title", re.compile(r"\d\d:\d\d:\d\d\.\d{3} UTC$"))


def test_the_first_tab_skips_to_the_content(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_an_intent_in_doubt_is_decided(page: Page, world: World) -> None:
    page.goto("/")
    page.get_by_role("link", name="In doubt").first.click()
    page.locator("tr", has_text="order-107").get_by_role("link", name="Decide").click()
    page.get_by_role("radio", name="It happened").check()
    page.get_by_label("Its result, as JSON").fill('{"sid": "SM7"}')
    page.get_by_role("button", name="Decide").click()
    expect(page.get_by_role("status")).to_contain_text("It is done")
    expect(page.locator(".timeline")).to_contain_text("ada (operator, dashboard)")
    assert b"SM7" in b"".join(
        record.result or b"" for record in world.store.list(scope="intents/billing/twilio/sms").records
    )


def test_a_dry_run_then_a_redrive(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Dead letters").first.click()
    page.get_by_label("Choose order-3002").check()
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dry run")
    expect(page.locator("main")).to_contain_text("1 of 1 would be sent")
    page.get_by_role("button", name="Redrive 1").click()
    expect(page.get_by_role("status")).to_contain_text("1 of 1 sent")
    page.get_by_role("link", name="Back to the dead letters").click()
    expect(page.locator("tbody tr")).to_have_count(2)


def test_a_key_is_unparked(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Outbox").first.click()
    page.get_by_label("Choose message 5").check()
    page.get_by_role("button", name="Unpark chosen").click()
    expect(page.get_by_role("status")).to_contain_text("1 unparked")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_sagas_page_is_drawn(page: Page) -> None:
    page.goto("/sagas?which=all")
    page.get_by_role("link", name="order-2004").click()
    drawing = page.locator("svg.saga")
    expect(drawing.locator(".node")).to_have_count(7)
    expect(drawing).to_contain_text("undo charge")
    colours = drawing.locator(".node rect").evaluate_all("all => all.map(each => getComputedStyle(each).stroke)")
    assert len(set(colours)) == 3, "done, failed and pending: the style sheet has a colour for each"


def test_light_and_dark(page: Page) -> None:
    def ground() -> str:
        colour: str = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return colour

    page.emulate_media(color_scheme="dark")
    page.goto("/")
    dark = ground()
    page.get_by_label("Switch between light and dark").click()
    light = ground()
    assert dark != light
    page.reload()
    assert ground() == light, "the choice is kept, against the system's"
    page.get_by_label("Switch between light and dark").click()
    assert ground() == dark


def test_a_long_failure_leaves_room_for_the_rest_of_its_row(page: Page, night: tuple[World, str]) -> None:
    why = "failed: [configuration] saga 'order-1' is done: there is nothing to turn around, whoever asks for it"
    night[0].audit.record("sagas compensate", "order-fulfilment order-1", by="grace@desk", outcome=why)
    page.goto("/audit")
    row = page.locator("tbody tr", has_text="whoever asks").first
    expect(row.get_by_text("failed", exact=True)).to_be_visible()
    table = page.locator("table.rows").evaluate("table => table.offsetWidth <= table.parentElement.clientWidth")
    assert table, "it ends where its panel does: who and when can be seen"
    lines = row.locator("td.mono").evaluate("cell => cell.offsetHeight / parseFloat(getComputedStyle(cell).lineHeight)")
    assert lines < 6, "its target is not one letter a line"


def test_a_phone_shows_every_page_without_sideways_scrolling(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    saga = "/saga?scope=saga%2Forder-fulfilment&key=order-2005"
    for path in (
        "/",
        "/records",
        "/in-doubt",
        "/sagas?which=all",
        saga,
        "/inbox",
        "/outbox",
        "/dead-letters",
        "/search?key=order-10*",
        "/doctor",
        "/audit",
    ):
        page.goto(path)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{path} is {width} wide"


@pytest.mark.parametrize("page", ["viewer"], indirect=True)
def test_a_viewer_finds_no_buttons(page: Page) -> None:
    for path in ("/in-doubt", "/outbox", "/dead-letters", "/saga?scope=saga%2Forder-fulfilment&key=order-2005"):
        page.goto(path)
        expect(page.locator("main button, main a.button", has_text="Decide")).to_have_count(0)
        expect(page.locator("main form[method=post] button")).to_have_count(0)


def test_a_script_in_a_key_does_not_run(page: Page) -> None:
    """F65."""
    page.on("dialog", lambda dialog: pytest.fail("the key's script ran"))
    page.goto("/records?key=pay_%3C*&scope=charge-card")
    page.get_by_role("link", name="<script>").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("<script>alert(1)</script>")


def test_everything_works_without_scripts(chromium: Any, sessions: dict[str, Any], night: tuple[World, str]) -> None:
    context = chromium.new_context(java_script_enabled=False, storage_state=sessions["operator"], base_url=night[1])
    try:
        page = context.new_page()
        page.goto("/")
        page.get_by_role("link", name="Records").first.click()
        page.get_by_label("Key", exact=True).fill("pay_0003")
        page.get_by_role("button", name="Search", exact=True).click()
        page.get_by_role("link", name="pay_0003").click()
        expect(page.locator(".timeline")).to_contain_text("claimed")
    finally:
        context.close()

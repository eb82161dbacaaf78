"""The built site, in a browser that has no network: opened from its files, as `make docs` leaves them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from tests.dashboard.serving import browser
from tests.harness.installed import Missing

from .pages import ROOT

pytestmark = pytest.mark.long
PHONE: dict[str, int] = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    try:
        with sync_playwright() as playwright, browser(playwright) as opened:
            yield opened
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    with chromium.new_context(offline=True, viewport=PHONE, color_scheme="dark") as context:
        yield context.new_page()


def test_it_is_built_without_a_warning_and_asks_no_other_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        asked = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\">\s]+)", page.read_text())
        assert not asked, f"{page.name} asks another host: {asked[:3]}"


def test_language_models_get_every_page_of_the_navigation(site: Path) -> None:
    linked = re.findall(r"\]\(([^)\s]+)\)", (site / "llms.txt").read_text())
    pages = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(linked) == len(pages) + 1  # and llms-full.txt
    assert all((site / url).exists() for url in linked)


def test_no_page_is_wider_than_a_phone(site: Path, page: Any) -> None:
    wider = {}
    for file in sorted(site.rglob("*.html")):
        page.goto(file.as_uri())
        if (width := page.evaluate("document.documentElement.scrollWidth")) > PHONE["width"]:
            wider[str(file.relative_to(site))] = width
    assert wider == {}


def test_the_search_works_from_a_file(site: Path, page: Any) -> None:
    page.goto((site / "index.html").as_uri())
    page.locator("label[for=__search]").first.click()
    page.locator("input.md-search__input").press_sequentially("retention")
    page.locator(".md-search-result__link").first.wait_for()
    assert page.locator(".md-search-result__link").count() > 3


def test_only_the_picture_in_the_colours_of_the_scheme_is_shown(site: Path, page: Any) -> None:
    page.goto((site / "guides" / "inbox.html").as_uri())
    shown = page.locator("img[src*='images/diagrams/']:visible")
    assert [re.search(r"-(\w+)\.svg", source)[1] for source in shown.evaluate_all("all => all.map(i => i.src)")] == [
        "dark"
    ]


def test_the_decision_tree_leads_to_the_guides(site: Path, page: Any) -> None:
    page.goto((site / "choose.html").as_uri())
    page.locator(".diagram.dark a:visible", has_text="transaction").click()
    page.wait_for_url("**/guides/inbox.html")


def test_a_copied_console_block_has_the_commands_alone(site: Path, page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto((site / "start.html").as_uri())

    def copy(block: Any) -> list[str]:
        block.locator("button[title^=Copy]").click()
        page.locator(".md-dialog", has_text="Copied").wait_for()
        return [line.strip() for line in page.evaluate("navigator.clipboard.readText()").split("\n")]

    with_comments = page.locator(".language-console", has_text="$ make demo")
    assert copy(with_comments)[:2] == ["make demo", ". .venv/bin/activate"]
    with_output = page.locator(".language-console", has_text="[fail]")
    assert copy(with_output) == ["effectonce verify shop:charge --message payment.json --effects shop:charged"]

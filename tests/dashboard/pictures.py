"""The pictures of the documentation: ``python -m tests.dashboard.pictures docs/images``.

Each page, light and dark, and some as a phone shows them; on a shop with real traffic, counted by its own metrics.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import prometheus_client
from playwright.sync_api import sync_playwright

import effectonce as eo
from effectonce.dashboard.sources import Sources
from effectonce.telemetry.prometheus import Metrics

from .serving import browser, log_in, served
from .world import World

PAGES = {
    "overview": "/",
    "records": "/records?scope=charge-card",
    "record": "/record?scope=charge-card&key=pay_declined",
    "in-doubt": "/in-doubt",
    "intent": "/in-doubt",
    "sagas": "/sagas?which=all",
    "saga": "/saga?scope=saga%2Forder-fulfilment&key=order-2005",
    "outbox": "/outbox",
    "dead-letters": "/dead-letters",
    "dead-letter": "/dead-letters",
    "dry-run": "/dead-letters",
    "doctor": "/doctor",
    "audit": "/audit",
}
ROOT = Path(__file__).resolve().parents[2]
PHONE = ("overview", "records", "in-doubt", "saga", "outbox")


@contextmanager
def traffic(store: eo.Store) -> Iterator[str]:
    """Some calls a second, every third of them a duplicate; the address of what they count."""
    registry = prometheus_client.CollectorRegistry()
    Metrics(registry).watch(store)
    server, serving = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    end = threading.Event()

    @eo.once(store, scope="receipts", key="number")
    def receipt(number: int) -> str:
        return f"rc_{number}"

    def call() -> None:
        for n in itertools.count():
            busy = 0.5 + 0.5 * ((time.time() % 37) / 37)
            if end.wait(0.02 + 0.05 * (1 - busy)):
                return
            receipt(n - n % 3 // 2)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        end.set()
        caller.join()
        server.shutdown()
        serving.join()
        server.server_close()


def shoot(page: Any, address: str, name: str, path: str, target: Path) -> None:
    page.goto(address + path)
    if name == "overview":
        page.wait_for_selector("[data-state=live]")
        page.wait_for_timeout(400)
    if name == "intent":
        page.locator("tr", has_text="intent").first.get_by_role("link").first.click()
    if name == "dead-letter":
        page.locator("td.lead a").first.click()
    if name == "dry-run":
        page.get_by_label("Choose all on this page").check()
        page.get_by_role("button", name="Dry run").click()
    page.wait_for_load_state("networkidle") if name != "overview" else None
    if name == "dead-letter":  # in its traceback are the folders of the machine that takes the pictures
        page.locator("pre").evaluate_all(
            "(all, root) => all.forEach(pre => { pre.textContent = pre.textContent.replaceAll(root, '/app') })",
            str(ROOT),
        )
    page.screenshot(path=str(target))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        world = World(Path()).live()
        shop = eo.connect(world.url)
        with traffic(shop) as metrics:
            sources = Sources(
                workers=[world.worker],
                intents=[world.intents],
                sagas=[world.saga],
                audit=world.audit,
                metrics=[metrics],
            )
            with served(sources) as address, sync_playwright() as playwright, browser(playwright) as chromium:
                time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 60)  # so that the plots have something to show
                for theme in ("light", "dark"):
                    wide = chromium.new_page(viewport={"width": 1280, "height": 800}, color_scheme=theme)
                    wide.goto(f"{address}/login")
                    wide.screenshot(path=str(folder / f"login-{theme}.png"))
                    log_in(wide, address)
                    for name, path in PAGES.items():
                        shoot(wide, address, name, path, folder / f"{name}-{theme}.png")
                    narrow = chromium.new_page(viewport={"width": 390, "height": 1000}, color_scheme=theme)
                    log_in(narrow, address)
                    for name in PHONE:
                        shoot(narrow, address, name, PAGES[name], folder / f"phone-{name}-{theme}.png")
        shop.close()
        world.store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

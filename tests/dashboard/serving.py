"""A dashboard on a port of its own, and a real browser to look at it with."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from effectonce.dashboard.access import Access
from effectonce.dashboard.app import make_app
from effectonce.dashboard.sources import Sources
from tests.harness.installed import Missing

OPERATOR, VIEWER = "operator-token-of-the-tests", "viewer-token-of-the-tests"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def served(sources: Sources) -> Iterator[str]:
    """The address of a dashboard that shows ``sources``."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = make_app(sources, Access(operator=OPERATOR, viewer=VIEWER))
        server = uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


def executable() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise Missing("Chromium", "apt-get install chromium")
    return path


@contextmanager
def browser(playwright: Any) -> Iterator[Any]:
    """The machine's own Chromium; nothing is downloaded."""
    opened = playwright.chromium.launch(executable_path=executable(), args=list(ARGUMENTS))
    try:
        yield opened
    finally:
        opened.close()


def log_in(page: Any, address: str, token: str = OPERATOR, who: str = "ada") -> None:
    page.goto(f"{address}/login")
    page.get_by_label("Your name").fill(who)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{address}/")

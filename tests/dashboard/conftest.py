"""Dashboards of a shop with something in every state: one to look at, and new ones to act on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from shutil import copytree

import httpx
import pytest
from starlette.testclient import TestClient

from effectonce.dashboard.access import Access
from effectonce.dashboard.app import make_app
from tests.dashboard.serving import OPERATOR, VIEWER
from tests.dashboard.world import World


class Visitor(TestClient):
    """A visitor of the dashboard without a browser. Tests follow redirects themselves."""

    def enter(self, token: str = OPERATOR, who: str = "ada") -> Visitor:
        answer = self.post("/login", data={"who": who, "token": token})
        assert answer.status_code == 303
        return self

    def csrf(self) -> str:
        match = re.search(r'name="csrf" value="([0-9a-f]+)"', self.get("/").text)
        assert match is not None
        return match[1]

    def act(self, path: str, **fields: str | list[str]) -> httpx.Response:
        return self.post(path, data={"csrf": self.csrf(), **fields})

    def links(self, path: str, to: str) -> list[str]:
        return [unescape(address) for address in re.findall(rf'href="({re.escape(to)}\?[^"#]*)', self.get(path).text)]


def visiting(world: World) -> Iterator[Visitor]:
    app = make_app(world.sources(), Access(operator=OPERATOR, viewer=VIEWER, hosts=["testserver"]))
    with Visitor(app, follow_redirects=False) as visitor:
        yield visitor


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a shop that is closed, to be copied. Made in a thread: a browser's loop may run in this one."""
    folder = tmp_path_factory.mktemp("lived")

    def live() -> None:
        world = World(folder).live()
        world.broker.close()
        world.store.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(live).result()
    return folder


@pytest.fixture(scope="module")
def world(lived: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One to look at: shared by the tests of a module."""
    made = World(copytree(lived, tmp_path_factory.mktemp("world"), dirs_exist_ok=True))
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def anyone(world: World) -> Iterator[Visitor]:
    """Somebody who has not logged in."""
    yield from visiting(world)


@pytest.fixture
def stranger(anyone: Visitor) -> Visitor:
    anyone.cookies.clear()
    return anyone


@pytest.fixture
def viewer(stranger: Visitor) -> Visitor:
    return stranger.enter(VIEWER, "val")


@pytest.fixture
def operator(stranger: Visitor) -> Visitor:
    return stranger.enter()


@pytest.fixture
def own(lived: Path, tmp_path: Path) -> Iterator[World]:
    """One to act on."""
    made = World(copytree(lived, tmp_path, dirs_exist_ok=True))
    yield made
    made.store.close()


@pytest.fixture
def hand(own: World) -> Iterator[Visitor]:
    """An operator at the dashboard of `own`."""
    for visitor in visiting(own):
        yield visitor.enter()

"""A store that hangs: every request is answered in bounded time, and what needs no store as ever (F36)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

import effectonce as eo
from effectonce.dashboard.access import SECURITY_HEADERS, Access
from effectonce.dashboard.app import make_app
from effectonce.dashboard.sources import Sources
from effectonce.dashboard.view_pool import ViewPool, ViewTimeout
from tests.dashboard.serving import OPERATOR
from tests.harness.proxy import FaultProxy


@contextmanager
def dashboard(redis_url: str, name: str) -> Iterator[tuple[Starlette, FaultProxy]]:
    """A dashboard over a network that may hang, with two slots for views."""
    with FaultProxy(int(redis_url.rpartition(":")[2].partition("/")[0])) as proxy:
        store = eo.connect(f"{proxy.through(redis_url)}?namespace={name}&timeout=2", sweep_every=None)
        with eo.block(store, scope="charge", key="a", on_error="doubt") as block:
            assert block.first
            block.result = 1
        app = make_app(Sources(store), Access(operator=OPERATOR, hosts=["testserver"]))
        app.state.dashboard.view_pool = ViewPool(20, max_running=2)
        yield app, proxy
        proxy.heal()
        app.state.dashboard.sources.close()
        store.close()


def visitor(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver", timeout=30)


def test_f36_pages_do_not_queue_behind_a_store_that_hangs(redis_url: str, unique_name: str) -> None:
    async def visit(app: Starlette, proxy: FaultProxy) -> None:
        async with visitor(app) as ada:
            await ada.post("/login", data={"who": "ada", "token": OPERATOR})
            assert (await ada.get("/records")).status_code == 200
            csrf = app.state.dashboard.access.find_session(next(iter(ada.cookies.values()))).csrf
            proxy.blackhole = True
            app.state.dashboard.view_pool.timeout = 0.4
            form = {"csrf": csrf, "scope": "charge", "key": "a", "outcome": "retry"}
            async with asyncio.timeout(25):  # one after the other they would take a minute
                answers = await asyncio.gather(
                    *(ada.get("/records") for _ in range(30)), ada.post("/in-doubt/resolve", data=form)
                )
                assert {answer.status_code for answer in answers} == {503}
                assert "has not answered within 0.4 s" in answers[0].text
                assert "Nothing was done: it had not begun" in answers[-1].text
                assert all(answers[0].headers[name] == value for name, value in SECURITY_HEADERS.items())
                still = [
                    await ada.get(path) for path in ("/", "/overview.json", "/audit", "/static/dashboard.css", "/login")
                ]
                assert [answer.status_code for answer in still] == [200] * 5
                assert (await ada.post("/logout", data={"csrf": csrf})).headers["location"] == "/login"
            proxy.heal()
            await ada.post("/login", data={"who": "ada", "token": OPERATOR})
            async with asyncio.timeout(25):
                while (await ada.get("/records")).status_code != 200:  # each waits for its turn
                    pass

    with dashboard(redis_url, unique_name) as (app, proxy):
        asyncio.run(visit(app, proxy))


def test_an_action_that_has_begun_is_waited_for() -> None:
    """The operator must learn its result."""

    async def act() -> None:
        view_pool = ViewPool(0.02, max_running=1)
        has_started, may_continue = threading.Event(), threading.Event()

        def view() -> Response:
            has_started.set()
            assert may_continue.wait(60)
            return PlainTextResponse("done")

        acting = asyncio.create_task(view_pool.answer(view, is_action=True))
        await asyncio.to_thread(has_started.wait, 20)
        with pytest.raises(ViewTimeout):  # whose turn has not come
            await view_pool.answer(lambda: pytest.fail("it must not begin"), is_action=True)
        assert not acting.done()
        may_continue.set()
        assert (await acting).body == b"done"

    asyncio.run(act())


def test_an_overdue_page_keeps_its_slot_and_logs_nothing() -> None:
    async def look() -> None:
        view_pool = ViewPool(0.02, max_running=1)
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        may_continue = threading.Event()

        def view() -> Response:
            assert may_continue.wait(60)
            raise eo.StoreUnavailable("at last")

        for _ in range(2):  # the second for want of a turn
            with pytest.raises(ViewTimeout):
                await view_pool.answer(view, is_action=False)
        may_continue.set()
        view_pool.timeout = 20
        assert (await view_pool.answer(lambda: PlainTextResponse("here"), is_action=False)).body == b"here"
        assert complaints == []

    asyncio.run(look())

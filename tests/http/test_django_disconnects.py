"""Django under ASGI cancels the request of a client that leaves; what is under a key goes on, and its retry gets it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

import effectonce as eo
from effectonce.http import Route, recorded_bodies
from effectonce.integrations.django import Idempotency, user_id
from effectonce.testing import ManualClock

from .test_asgi import Client
from .test_django import Shop

RELEASE = Route(on_error="release")  # where a cancelled view would run a second time, beside itself

runs: list[str] = []
begun, over = threading.Event(), threading.Event()
ended = asyncio.Event()
spoken: ContextVar[str] = ContextVar("spoken", default="nothing")


async def later() -> None:
    """Wait until the test says so. The request still has its thread then, and the connections in it."""
    thread = await sync_to_async(threading.current_thread)()
    begun.set()
    assert await asyncio.to_thread(over.wait, 30)
    if await sync_to_async(threading.current_thread)() is not thread:
        runs.append("in another thread")


async def awaits(request: HttpRequest) -> HttpResponse:
    await later()
    runs.append("awaits")
    return HttpResponse("done")


def blocks(request: HttpRequest) -> HttpResponse:
    begun.set()
    assert over.wait(30)
    runs.append("blocks")
    return HttpResponse("done")


async def streams(request: HttpRequest) -> StreamingHttpResponse:
    async def lines() -> AsyncIterator[bytes]:
        yield b"do"
        await later()
        runs.append("streams")
        yield b"ne"

    return StreamingHttpResponse(lines())


async def ready(request: HttpRequest) -> StreamingHttpResponse:
    async def lines() -> AsyncIterator[bytes]:
        for piece in (b"d", b"o", b"n", b"e"):
            yield piece
        runs.append("ready")

    return StreamingHttpResponse(lines())


async def streams_later(request: HttpRequest) -> StreamingHttpResponse:
    await later()
    return await streams(request)


def sync_stream(request: HttpRequest) -> StreamingHttpResponse:
    def lines() -> Iterator[bytes]:
        yield b"do"
        runs.append("sync_stream")
        yield b"ne"

    begun.set()
    assert over.wait(30)
    return StreamingHttpResponse(lines())


async def endless(request: HttpRequest) -> StreamingHttpResponse:
    async def lines() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100
                await asyncio.sleep(0)
                begun.set()
        finally:
            ended.set()

    return StreamingHttpResponse(lines())


async def endless_later(request: HttpRequest) -> StreamingHttpResponse:
    await later()
    return await endless(request)


async def speaks(request: HttpRequest) -> HttpResponse:
    spoken.set("Italian")
    return HttpResponse("ciao")


class Hears:
    """A middleware outside of the guard, as Django's for languages is."""

    async_capable, sync_capable = True, False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        response = await self.get_response(request)
        response["Content-Language"] = spoken.get()
        return response


class AnswersItself:
    """A middleware outside of the guard that looks at the beginning of a stream, and answers something else."""

    async_capable, sync_capable = True, False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        response = await self.get_response(request)
        if not response.streaming:
            return response  # type: ignore[no-any-return]
        chunks = aiter(response)
        return HttpResponse(b"it begins with " + await anext(chunks))


VIEWS: list[Callable[..., Any]] = [
    awaits, blocks, streams, ready, streams_later, sync_stream, endless, endless_later, speaks,
]  # fmt: skip
urlpatterns = [path(view.__name__, view) for view in VIEWS]


@pytest.fixture(autouse=True)
def fresh() -> None:
    runs.clear()
    begun.clear()
    over.clear()
    ended.clear()


def client(shop: Shop, view: str) -> Client:
    headers = [(b"idempotency-key", b"k"), (b"x-user", b"alice")]
    scope = {"type": "http", "method": "POST", "path": f"/{view}", "query_string": b"", "headers": headers}
    return Client(shop.handler, scope=scope)


async def has_begun() -> None:
    assert await asyncio.to_thread(begun.wait, 30)


async def leaves(shop: Shop, view: str) -> None:
    """Ask, leave as soon as the view has begun, and let it go on when Django has heard of that."""
    with shop.settings:
        first = client(shop, view)
        asked = first.begin()
        await has_begun()
        first.left.set()
        await asyncio.wait([asked], timeout=0.05)  # Django hears of it, and would end request and thread
        over.set()
        await asyncio.wait([asked], timeout=30)
        assert asked.done()
        asked.exception()


@pytest.mark.parametrize("view", ["awaits", "blocks", "streams", "streams_later", "sync_stream"])
async def test_20_a_client_that_leaves_does_not_stop_the_view_its_retry_will_ask_for(
    store: eo.Store, view: str
) -> None:
    """A sync view goes on in its thread whatever happens: released, its retry ran beside it."""
    shop = Shop("async", __name__, STORE=store, PRINCIPAL=user_id, DEFAULT=RELEASE)
    await leaves(shop, view)
    with shop.settings:
        again = await client(shop, view).exchange()
    assert (again.status, again.body, again.replayed, runs) == (200, b"done", True, [view.removesuffix("_later")])


async def test_20_a_client_that_leaves_while_it_is_sent_to_leaves_nothing_waiting_for_it(store: eo.Store) -> None:
    """Not the last of the chunks either, of which one is ready and one comes."""
    shop = Shop("async", __name__, STORE=store, PRINCIPAL=user_id)
    slow = client(shop, "ready")

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            slow.left.set()
            await asyncio.Event().wait()

    slow.send = send  # type: ignore[method-assign]
    with shop.settings:
        with pytest.raises(AssertionError, match="no response"):
            await slow.exchange()
        async with asyncio.timeout(30):
            await asyncio.gather(*recorded_bodies.running_tasks)
        again = await client(shop, "ready").exchange()
    assert (again.body, again.replayed, runs) == (b"done", True, ["ready"])


@pytest.mark.parametrize(("on_error", "state"), [("doubt", "in_doubt"), ("release", "free"), ("replay", "done")])
@pytest.mark.parametrize("view", ["endless", "endless_later"])
async def test_14_a_stream_too_long_to_keep_ends_with_its_client(
    store: eo.Store, view: str, on_error: Any, state: str
) -> None:
    shop = Shop("async", __name__, STORE=store, PRINCIPAL=user_id, DEFAULT=Route(max_response=1000, on_error=on_error))
    await leaves(shop, view)
    await asyncio.wait_for(ended.wait(), 30)
    assert [record.state for record in store.list().records] == [state]


async def test_f16_a_server_that_stops_ends_the_view_and_settles_it(store: eo.Store) -> None:
    """A second cancellation ends the request."""
    shop = Shop("async", __name__, STORE=store, PRINCIPAL=user_id)
    before = asyncio.all_tasks()
    with shop.settings:
        asked = client(shop, "awaits").begin()
        await has_begun()
        while not asked.done():
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await asyncio.sleep(0)
        over.set()
    assert ([record.state for record in store.list().records], runs) == (["in_doubt"], [])


async def test_f07_a_stream_that_nobody_will_ever_read_is_renewed_no_longer(
    store: eo.Store, clock: ManualClock
) -> None:
    """Django drops what a sync view returns to a client that has left; its claim was renewed for an hour."""
    view = Idempotency(store, principal=eo.GLOBAL, lease="30s")(sync_stream)
    urls = type("Urls", (), {"urlpatterns": [path("sync_stream", view)]})
    shop = Shop("async", urls, middleware=False)
    await leaves(shop, "sync_stream")
    gc.collect()
    assert not store.runtime.leased_runs
    clock.advance(31)
    with shop.settings:
        assert (await client(shop, "sync_stream").exchange()).code == "in-doubt"


async def test_what_a_view_sets_for_its_context_is_seen_outside_of_the_guard(store: eo.Store) -> None:
    shop = Shop("async", __name__, STORE=store, PRINCIPAL=user_id)
    shop.settings.options["MIDDLEWARE"].insert(0, f"{__name__}.Hears")
    with shop.settings:
        shop.handler = ASGIHandler()
        assert (await client(shop, "speaks").exchange())["content-language"] == "Italian"


async def test_20_a_stream_that_a_middleware_drops_half_read_runs_to_its_end(store: eo.Store) -> None:
    """Otherwise it would wait for ever for its reader, and its claim would be renewed for ever."""
    shop = Shop("async", __name__, STORE=store, PRINCIPAL=user_id)
    shop.settings.options["MIDDLEWARE"].insert(0, f"{__name__}.AnswersItself")
    with shop.settings:
        shop.handler = ASGIHandler()
        assert (await client(shop, "ready").exchange()).body == b"it begins with d"
        gc.collect()
        async with asyncio.timeout(30):
            await asyncio.gather(*recorded_bodies.running_tasks)
    assert ([record.state for record in store.list().records], runs) == (["done"], ["ready"])

"""Real servers on both sides, uvicorn before the middleware, Redis and PostgreSQL behind it, and what breaks there."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import effectonce as eo
from effectonce.http import Route
from effectonce.http.asgi import IdempotencyMiddleware
from tests.harness.proxy import FaultProxy
from tests.harness.web import Web, web

from .test_asgi import Client, request_scope

# -- bytes on the wire


@pytest.fixture(scope="module")
def server(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    namespace = tmp_path_factory.mktemp("ns").parent.name.replace("-", "_")
    variables = {"EFFECTONCE_STORE": f"{redis_url}?namespace={namespace}_{time.time_ns()}"}
    with web(
        "-m", "uvicorn", "tests.http.shop:app", "--port", "{port}", "--lifespan", "off", variables=variables
    ) as made:
        yield made


def effects(server: Web, path: str) -> int:
    lines = Path(server.dir, "effects.txt")
    return sum(line.startswith(f"{path} ") for line in lines.read_text().splitlines()) if lines.exists() else 0


def raw(path: str, body: bytes = b"amount=7", *headers: bytes) -> bytes:
    return b"\r\n".join(
        [
            b"POST %b HTTP/1.1" % path.encode(), b"Host: shop", b"Idempotency-Key: k", *headers,
            *([] if headers else [b"Content-Length: %d" % len(body)]), b"Connection: close", b"", body,
        ]
    )  # fmt: skip


def talk(server: Web, sent: bytes, read: int | None = None) -> bytes:
    """Send, read all of the answer or some bytes of it, and leave; without reading it all, with a reset."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(sent)
        got = b""
        if read is None:
            while chunk := sock.recv(65_536):
                got += chunk
            return got
        while len(got) < read and (chunk := sock.recv(read - len(got))):
            got += chunk
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return got


def test_a_client_that_leaves_at_any_byte_of_its_request(server: Web) -> None:
    """Nothing that is not whole is claimed; the whole one runs once."""
    whole = raw("/leaves-asking")
    for length in range(len(whole)):
        talk(server, whole[:length], read=0)
    first, again = talk(server, whole), talk(server, whole)
    assert (first.split()[1], again.split()[1]) == (b"201", b"201")
    assert b"idempotent-replayed: true" in again
    assert effects(server, "/leaves-asking") == 1


def test_a_client_that_leaves_at_any_byte_of_its_answer(server: Web) -> None:
    """Whatever it has seen of it, its retry gets all of it, and the effect happened once."""
    whole = len(talk(server, raw("/leaves-answered")))
    for length in range(0, whole, 7):
        path = f"/leaves-answered-{length}"
        talk(server, raw(path), read=length)
        answer = until_answered(server, path)
        assert answer.endswith(b"one two three")
        assert effects(server, path) == 1


def until_answered(server: Web, path: str) -> bytes:
    """The retry, once the first is no longer being processed."""
    while (answer := talk(server, raw(path))).split()[1] == b"409":
        time.sleep(0.01)
    assert answer.split()[1] == b"201", answer
    return answer


NONSENSE = [
    b"zz\r\namount=7\r\n0\r\n\r\n",
    b"-1\r\namount=7\r\n0\r\n\r\n",
    b"ffffffffffffffffffffff\r\namount=7\r\n",
    b"8\r\namount=7",
    b"8\r\namount=7\r\n",
    b"4\r\namount=7\r\n0\r\n\r\n",
    b"8\r\namount=7\r\n0\r\n",
    b"\r\n\r\n",
    b"",
    b"\x00" * 40,
]


@pytest.mark.parametrize("body", NONSENSE)
def test_chunked_nonsense_runs_nothing(server: Web, body: bytes) -> None:
    talk(server, raw("/nonsense", body, b"Transfer-Encoding: chunked"), read=0)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(raw("/nonsense", body, b"Transfer-Encoding: chunked"))
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65_536):
            pass
    assert effects(server, "/nonsense") == 0


def test_a_chunked_body_is_read_whole_and_is_the_same_request_as_one_with_a_length(server: Web) -> None:
    """asgi-idempotency-header cut it."""
    chunked = raw("/chunked", b"3\r\namo\r\n5\r\nunt=7\r\n0\r\n\r\n", b"Transfer-Encoding: chunked")
    assert talk(server, chunked).split()[1] == b"201"
    assert b"idempotent-replayed: true" in talk(server, raw("/chunked"))
    assert Path(server.dir, "effects.txt").read_text().count("/chunked 8\n") == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([b"Content-Length: 8", b"Idempotency-Key: k"], b"400"),
        ([b"Content-Length: 2000000"], b"413"),
        ([b"Content-Length: 8", b"Content-Length: 9"], b"400"),
    ],
)
def test_headers_that_cannot_be(server: Web, headers: list[bytes], status: bytes) -> None:
    """A repeated key, a body over the cap that never comes, two lengths."""
    assert talk(server, raw("/headers", b"amount=7", *headers)).split()[1] == status
    assert effects(server, "/headers") == 0


def test_many_at_once_are_one(server: Web) -> None:
    """F15, over the wire."""

    async def herd() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            return await asyncio.gather(
                *(client.post("/herd", content=b"x", headers={"Idempotency-Key": "k"}) for _ in range(50))
            )

    answers = asyncio.run(herd())
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert sum(answer.status_code == 201 and "idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert effects(server, "/herd") == 1


# -- the store behind it


@pytest.fixture(params=["redis", "postgres"])
async def behind(request: pytest.FixtureRequest, unique_name: str) -> AsyncIterator[tuple[FaultProxy, eo.Store]]:
    """A store that is reached through a network that can break."""
    url = request.getfixturevalue(f"{request.param}_url")
    options = f"?namespace={unique_name}&" if request.param == "redis" else f"?prefix={unique_name}&"
    place = urlsplit(url)
    assert place.port is not None
    if request.param == "postgres":
        with eo.connect(url + options.rstrip("&")) as direct:
            direct.migrate()
    with FaultProxy(place.port) as proxy:
        async with eo.connect(f"{proxy.through(url)}{options}timeout=1&connect_timeout=1", sweep_every=None) as store:
            yield proxy, store


class Shop:
    def __init__(self, store: eo.Store, default: Route | None = None) -> None:
        self.runs = 0
        self.middleware = IdempotencyMiddleware(self.app, store, principal=eo.GLOBAL, default=default or Route())

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"receipt"})

    async def ask(self, key: str = "k") -> Any:
        return await Client(self.middleware, scope=request_scope(key)).exchange()


@pytest.mark.chaos
async def test_f36_a_store_that_hangs_is_a_503_and_nothing_runs(behind: tuple[FaultProxy, eo.Store]) -> None:
    proxy, store = behind
    shop = Shop(store)
    assert (await shop.ask("warm")).status == 201
    proxy.blackhole = True
    refused = await asyncio.wait_for(shop.ask(), 60)
    assert (refused.status, refused.code, refused["retry-after"], shop.runs) == (503, "store-unavailable", "1", 1)
    proxy.heal()
    proxy.reset()
    assert ((await shop.ask()).status, (await shop.ask()).replayed, shop.runs) == (201, True, 2)


@pytest.mark.chaos
async def test_f36_a_store_that_hangs_after_the_handler_ran_leaves_no_free_key(
    behind: tuple[FaultProxy, eo.Store],
) -> None:
    """Line 20: the response is not sent, and the key is claimed until it is in doubt."""
    proxy, store = behind
    shop = Shop(store)
    assert (await shop.ask("warm")).status == 201
    app = shop.app

    async def cut_off(scope: Any, receive: Any, send: Any) -> None:
        proxy.blackhole = True
        await app(scope, receive, send)

    shop.middleware._app = cut_off
    assert (await asyncio.wait_for(shop.ask(), 60)).code == "store-unavailable"
    proxy.heal()
    proxy.reset()
    shop.middleware._app = app
    again = await shop.ask()
    assert (again.code in ("in-progress", "in-doubt") or again.replayed, shop.runs) == (True, 2)


@pytest.mark.chaos
@pytest.mark.parametrize("nth", [1, 2])
async def test_f68_a_reply_that_is_lost_is_asked_for_again(behind: tuple[FaultProxy, eo.Store], nth: int) -> None:
    """Line 9: the first of the claim, the second of the completion. Both were applied, and recognise themselves."""
    proxy, store = behind
    shop = Shop(store)
    assert (await shop.ask("warm")).status == 201
    proxy.drop_reply(nth)
    first = await shop.ask()
    assert (first.status, first.body) == (201, b"receipt")
    assert ((await shop.ask()).replayed, shop.runs) == (True, 2)

"""Agent commerce: ACP's rules for Idempotency-Key, and AdCP's ten, each with a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import Context
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

import effectonce as eo
from effectonce.errors import ConfigurationError
from effectonce.http import profiles
from effectonce.http.asgi import IdempotencyMiddleware
from effectonce.http.key_limit import KeyLimit
from effectonce.http.profiles import ACP, AdCP, Profile, adcp_capabilities
from effectonce.http.wsgi import IdempotencyMiddleware as WSGIMiddleware

KEY = "0b9f7a52-1d3e-4c0a-9d7e-2f6d1c8e4a10"


class Shop:
    """An application behind the middleware, and what it did."""

    def __init__(self, profile: Profile, store: eo.Store | None = None, **settings: Any) -> None:
        self.ran: list[Any] = []
        self.status = 200
        self.answer: Callable[[Any], Any] = lambda request: {"status": "completed", "number": len(self.ran)}
        self.meanwhile: Callable[[], Any] = lambda: None
        self.agent = "agent-1"
        self.store = store or eo.connect("memory://")
        route = profile.route(**settings)
        self.app = IdempotencyMiddleware(
            self.run, self.store, principal=lambda scope: self.agent, profile=profile, default=route
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False), base_url="http://shop"
        )

    async def run(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        self.ran.append(json.loads(body) if body else None)
        await asyncio.sleep(0)
        if (work := self.meanwhile()) is not None:
            await work
        content = json.dumps(self.answer(self.ran[-1])).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def apart(work: Any) -> Any:
    """Await ``work`` as another request, and not as part of the one that is running."""
    return await asyncio.create_task(work, context=Context())


# -- ACP


@pytest.fixture
def acp() -> Shop:
    return Shop(ACP)


async def post_acp(shop: Shop, body: Any = None, key: str | None = KEY, path: str = "/checkout_sessions") -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    content = body if isinstance(body, bytes) else json.dumps(body or {"items": [1]}).encode()
    return await shop.client.post(path, content=content, headers=headers)


async def test_acp_a_post_without_a_key_is_refused_with_400(acp: Shop) -> None:
    reply = await post_acp(acp, key=None)
    assert (reply.status_code, reply.json()["type"], reply.json()["code"]) == (
        400,
        "invalid_request",
        "idempotency_key_required",
    )
    assert set(reply.json()) == {"type", "code", "message"}, "a flat object"
    assert acp.ran == []


async def test_acp_a_get_needs_no_key(acp: Shop) -> None:
    assert (await acp.client.get("/checkout_sessions/1")).status_code == 200


async def test_acp_a_key_has_255_characters_at_most(acp: Shop) -> None:
    assert (await post_acp(acp, key="k" * 255)).status_code == 200
    reply = await post_acp(acp, key="k" * 256)
    assert (reply.status_code, reply.json()["type"]) == (400, "invalid_request")


async def test_acp_a_replay_is_the_first_response_with_its_status_and_marked(acp: Shop) -> None:
    acp.status = 201
    first, again = [await post_acp(acp) for _ in range(2)]
    assert (again.status_code, again.content) == (first.status_code, first.content) == (201, first.content)
    assert (first.headers.get("idempotent-replayed"), again.headers["idempotent-replayed"]) == (None, "true")
    assert len(acp.ran) == 1


async def test_acp_every_answer_echoes_the_key(acp: Shop) -> None:
    replies = [await post_acp(acp), await post_acp(acp), await post_acp(acp, {"items": [2]})]
    assert [reply.status_code for reply in replies] == [200, 200, 422]
    assert [reply.headers["idempotency-key"] for reply in replies] == [KEY] * 3


async def test_acp_another_body_is_a_conflict_with_422(acp: Shop) -> None:
    await post_acp(acp, {"items": [1]})
    reply = await post_acp(acp, {"items": [2]})
    assert (reply.status_code, reply.json()["type"], reply.json()["code"]) == (
        422,
        "invalid_request",
        "idempotency_conflict",
    )
    assert len(acp.ran) == 1


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        (b'{"b": null, "a": 1.0}', True),  # another order of members, a trailing zero
        (b'{ "a" : 1 , "b" : null }', True),
        (b'{"a": 1}', False),  # null is not the same as absent
        (b'{"a": 1, "b": null, "c": 1}', False),
    ],
)
async def test_acp_bodies_are_equal_as_json(acp: Shop, other: bytes, is_equal: bool) -> None:
    await post_acp(acp, b'{"a": 1, "b": null}')
    assert (await post_acp(acp, other)).status_code == (200 if is_equal else 422)


async def test_acp_another_query_is_a_conflict(acp: Shop) -> None:
    replies = [await post_acp(acp, path=f"/checkout_sessions?currency={name}") for name in ("usd", "eur")]
    assert [reply.status_code for reply in replies] == [200, 422]


async def test_acp_a_body_that_is_nested_too_deeply_is_refused(acp: Shop) -> None:
    assert (await post_acp(acp, b"[" * 100_000 + b"]" * 100_000)).status_code == 400


async def test_acp_the_order_of_an_array_counts(acp: Shop) -> None:
    await post_acp(acp, {"items": [1, 2]})
    assert (await post_acp(acp, {"items": [2, 1]})).status_code == 422


async def test_acp_a_request_in_flight_is_answered_409_with_retry_after(acp: Shop) -> None:
    inside: list[Any] = []

    async def send_again() -> None:
        acp.meanwhile = lambda: None
        inside.append(await apart(post_acp(acp)))

    acp.meanwhile = send_again
    assert (await post_acp(acp)).status_code == 200
    (reply,) = inside
    assert (reply.status_code, reply.json()["code"]) == (409, "idempotency_in_flight")
    assert int(reply.headers["retry-after"]) >= 1
    assert len(acp.ran) == 1


async def test_acp_keys_belong_to_a_caller_and_a_path(acp: Shop) -> None:
    await post_acp(acp)
    await post_acp(acp, path="/checkout_sessions/1/complete")
    acp.agent = "agent-2"
    await post_acp(acp)
    assert len(acp.ran) == 3


async def test_acp_what_answered_5xx_runs_again(acp: Shop) -> None:
    acp.status = 503
    assert (await post_acp(acp)).status_code == 503
    acp.status = 200
    assert (await post_acp(acp)).status_code == 200
    assert len(acp.ran) == 2


async def test_acp_keys_are_kept_for_a_day_at_least(acp: Shop) -> None:
    reply = await post_acp(acp)
    assert int(reply.headers["idempotency-key-retention"]) >= 86_400


async def test_acp_a_store_that_is_away_is_no_problem_json(acp: Shop) -> None:
    acp.store.close()
    away = Shop(ACP, eo.connect("redis://127.0.0.1:1/0?timeout=1s"))
    reply = await post_acp(away)
    assert (reply.status_code, reply.json()["type"]) == (503, "service_unavailable")
    assert reply.headers["content-type"] == "application/json"
    assert away.ran == []


# -- AdCP


@pytest.fixture
def adcp() -> Shop:
    return Shop(AdCP)


async def post(shop: Shop, payload: Any = None, key: Any = KEY, path: str = "/create_media_buy", **more: Any) -> Any:
    body = {"idempotency_key": key, "budget": 10, **more} if payload is None else payload
    if key is None:
        del body["idempotency_key"]
    return await shop.client.post(path, json=body)


def code_of(reply: Any) -> str:
    (error,) = reply.json()["errors"]
    assert error["message"]
    return str(error["code"])


@pytest.mark.parametrize("key", [None, "short", "k" * 256, "with spaces in its middle", 7, ""])
async def test_adcp_1_the_form_of_the_key_is_checked_before_any_lookup(adcp: Shop, key: Any) -> None:
    reply = await post(adcp, key=key)
    assert (reply.status_code, code_of(reply)) == (400, "INVALID_REQUEST")
    assert "idempotency_key" in reply.json()["errors"][0]["message"], "and not the header"
    assert (adcp.ran, adcp.store.list().records) == ([], []), "and nothing is kept of it"


async def test_adcp_1_a_body_that_is_not_json_is_refused(adcp: Shop) -> None:
    reply = await adcp.client.post("/create_media_buy", content=b"{")
    assert (reply.status_code, code_of(reply)) == (400, "INVALID_REQUEST")
    assert "must be JSON" in reply.json()["errors"][0]["message"]


@pytest.mark.parametrize("status", ["completed", "submitted"])
async def test_adcp_2_the_first_success_is_what_every_retry_gets(adcp: Shop, status: str) -> None:
    adcp.answer = lambda request: {"status": status, "packages": ["pending"], "task_id": f"t{len(adcp.ran)}"}
    first = (await post(adcp)).json()
    adcp.answer = lambda request: {"status": "completed", "packages": ["live"]}  # what it has become since
    assert (await post(adcp)).json() == {**first, "replayed": True}
    assert len(adcp.ran) == 1


@pytest.mark.parametrize("errors", [None, []])
async def test_adcp_2_a_success_whose_errors_are_empty_is_a_success(adcp: Shop, errors: Any) -> None:
    adcp.answer = lambda request: {"status": "completed", "errors": errors}
    await post(adcp)
    assert (await post(adcp)).json()["replayed"]
    assert len(adcp.ran) == 1


@pytest.mark.parametrize(
    ("http_status", "answer"),
    [
        (400, {"errors": [{"code": "BUDGET_TOO_LOW"}]}),
        (503, {"errors": [{"code": "SERVICE_UNAVAILABLE"}]}),
        (200, {"status": "failed"}),
        (200, {"errors": [{"code": "BUDGET_TOO_LOW"}]}),
    ],
)
async def test_adcp_3_an_error_is_not_kept_and_the_retry_runs(adcp: Shop, http_status: int, answer: Any) -> None:
    success = adcp.answer
    adcp.status, adcp.answer = http_status, lambda request: answer
    await post(adcp)
    adcp.status, adcp.answer = 200, success
    reply = await post(adcp)
    assert (reply.json()["number"], "replayed" in reply.json()) == (2, False)


async def test_adcp_4_a_replay_is_marked_in_the_envelope_and_its_payload_is_byte_for_byte(adcp: Shop) -> None:
    adcp.answer = lambda request: {"status": "completed", "payload": {"b": 1.50, "a": "é"}, "replayed": False}
    first, again = await post(adcp), await post(adcp)
    assert (first.json()["replayed"], again.json()["replayed"]) == (False, True)
    payload = json.dumps({"b": 1.50, "a": "é"}).encode()
    assert payload in first.content
    assert payload in again.content
    assert int(again.headers["content-length"]) == len(again.content)


@pytest.mark.parametrize(
    "more",
    [
        {"context": {"correlation_id": "other"}},
        {"governance_context": "renewed"},
        {"push_notification_config": {"url": "https://a", "authentication": {"credentials": "new"}}},
    ],
)
async def test_adcp_5_what_rotates_is_not_compared(adcp: Shop, more: dict[str, Any]) -> None:
    before = {"push_notification_config": {"url": "https://a", "authentication": {"credentials": "old"}}}
    await post(adcp, **{name: before.get(name, "before") for name in more})
    assert (await post(adcp, **more)).json()["replayed"]


@pytest.mark.parametrize("more", [{"budget": 11}, {"ext": {"trace": "2"}}, {"start": None}])
async def test_adcp_5_another_payload_is_a_conflict_that_tells_nothing(adcp: Shop, more: dict[str, Any]) -> None:
    await post(adcp, ext={"trace": "1"}) if "ext" in more else await post(adcp)
    reply = await post(adcp, **more)
    assert code_of(reply) == "IDEMPOTENCY_CONFLICT"
    assert set(reply.json()["errors"][0]) == {"code", "message", "recovery"}
    assert len(adcp.ran) == 1


async def test_adcp_5_the_key_of_another_tool_is_a_conflict(adcp: Shop) -> None:
    await post(adcp)
    assert code_of(await post(adcp, path="/update_media_buy")) == "IDEMPOTENCY_CONFLICT"


async def test_adcp_6_a_key_past_its_window_is_refused_as_expired(adcp: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(profiles, "time", type("Clock", (), {"time": staticmethod(lambda: now[0])}))
    await post(adcp)
    now[0] += 86_400 + 59
    assert (await post(adcp)).json()["replayed"], "a minute is allowed for clocks that differ"
    now[0] += 2
    assert code_of(await post(adcp)) == "IDEMPOTENCY_EXPIRED"
    assert len(adcp.ran) == 1


def test_adcp_6_keys_are_kept_for_longer_than_they_are_replayed() -> None:
    with pytest.raises(ConfigurationError, match="keep keys for longer"):
        AdCP.route(retention="1d")


def test_adcp_7_the_window_is_declared() -> None:
    declared = adcp_capabilities(AdCP, AdCP.route(lease="30s", max_run="5m"))
    assert declared == {"supported": True, "replay_ttl_seconds": 86_400, "in_flight_max_seconds": 330}


@pytest.mark.parametrize("window", [None, 3_599, 604_801])
def test_adcp_7_a_window_out_of_bounds_is_refused(window: int | None) -> None:
    with pytest.raises(ConfigurationError, match="3600 to 604800"):
        adcp_capabilities(replace(AdCP, replay_window_s=window), AdCP.route())


async def test_adcp_8_new_keys_are_limited_for_each_caller() -> None:
    shop = Shop(replace(AdCP, keys_per_s=1, burst=2))
    keys = [f"{number:0>20}" for number in range(3)]
    replies = [await post(shop, key=key) for key in keys]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    error = replies[2].json()["errors"][0]
    assert (error["code"], error["recovery"], error["retry_after"]) == ("RATE_LIMITED", "transient", 1)
    assert len(shop.store.list().records) == 2, "nothing is kept of what was refused"
    shop.agent = "agent-2"
    assert (await post(shop, key=keys[2])).status_code == 200


def test_adcp_8_a_replay_uses_up_no_key_and_the_bucket_fills_again() -> None:
    now = [0.0]
    limit = KeyLimit(2, 2, clock=lambda: now[0])
    assert [limit.take("a") for _ in range(3)] == [0, 0, 1]
    limit.give_back("a")
    assert [limit.take("a") for _ in range(2)] == [0, 1]
    now[0] += 1.0
    assert [limit.take("a") for _ in range(3)] == [0, 0, 1]


async def test_adcp_9_of_two_at_once_one_runs_and_the_other_is_told_to_retry(adcp: Shop) -> None:
    inside: list[Any] = []

    async def send_again() -> None:
        adcp.meanwhile = lambda: None
        inside.append(await apart(post(adcp)))
        inside.append(await apart(post(adcp, budget=99)))

    adcp.meanwhile = send_again
    await post(adcp)
    same, other = inside
    assert code_of(same) == "IDEMPOTENCY_IN_FLIGHT"
    assert same.json()["errors"][0]["retry_after"] >= 1
    assert code_of(other) == "IDEMPOTENCY_CONFLICT", "the payload is compared while the first one runs, too"
    assert len(adcp.ran) == 1


async def test_adcp_9_or_it_waits_and_gets_the_replay() -> None:
    shop = Shop(AdCP, wait="10s")
    started, release = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        started.set()
        await release.wait()

    shop.meanwhile = hold
    first = asyncio.create_task(post(shop))
    await started.wait()
    second = asyncio.create_task(post(shop))
    release.set()
    assert (await first).json()["number"] == 1
    assert (await second).json() == {"status": "completed", "number": 1, "replayed": True}


async def test_adcp_10_a_retry_sends_the_same_key_downstream_and_never_the_buyers(adcp: Shop) -> None:
    """A derivative for each provider. What has no keys goes through an intent, which is the claim row of the rule."""
    sent: list[str] = []

    def call_downstream() -> None:
        sent.append(eo.current().provider_key("stripe"))
        if len(sent) == 1:
            raise ConnectionError("the answer was lost")

    adcp.meanwhile = call_downstream
    assert [(await post(adcp)).status_code for _ in range(2)] == [500, 200]
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert KEY not in sent[0]


async def test_adcp_a_read_may_come_without_a_key_and_keeps_its_body() -> None:
    shop = Shop(AdCP, required=False)
    replies = [await post(shop, key=None, path="/get_products") for _ in range(2)]
    assert [reply.json()["number"] for reply in replies] == [1, 2]
    assert shop.ran == [{"budget": 10}] * 2


# -- both, behind WSGI


@pytest.mark.parametrize("profile", [ACP, AdCP], ids=lambda profile: profile.name)
def test_a_profile_is_the_same_behind_wsgi(profile: Profile, memory_store: eo.Store) -> None:
    ran: list[bytes] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        ran.append(environ["wsgi.input"].read())
        start_response("200 OK", [("content-type", "application/json")])
        return [b'{"status": "completed"}']

    guarded = WSGIMiddleware(app, memory_store, principal=eo.GLOBAL, profile=profile)
    client = httpx.Client(transport=httpx.WSGITransport(guarded), base_url="http://shop")
    headers = {"Idempotency-Key": KEY}
    bodies = [{"idempotency_key": KEY, "budget": budget} for budget in (1, 1, 2)]
    first, again, other = (client.post("/buys", json=body, headers=headers) for body in bodies)
    assert (first.status_code, again.status_code, other.status_code) == (200, 200, 422)
    assert again.headers["idempotent-replayed"] == "true"
    assert ("replayed" in again.json()) == (profile is AdCP)
    assert (
        first.headers.get("idempotency-key")
        == again.headers.get("idempotency-key")
        == (KEY if profile.echoes_key else None)
    )
    missing = client.post("/buys", json={"budget": 1})
    assert missing.status_code == 400
    assert len(ran) == 1


def test_a_read_behind_wsgi_may_come_without_a_key(memory_store: eo.Store) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["wsgi.input"].read()]

    guarded = WSGIMiddleware(app, memory_store, principal=eo.GLOBAL, profile=AdCP, default=AdCP.route(required=False))
    client = httpx.Client(transport=httpx.WSGITransport(guarded), base_url="http://shop")
    assert client.post("/get_products", json={"brief": "x"}).json() == {"brief": "x"}

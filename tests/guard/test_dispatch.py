"""Hand-written loops, Lambda batches, webhooks, agents' tools: what the broker is told, and how often it happened."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel

import effectonce as eo
from effectonce.agents import tool_once
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.delivery_outcome import Ack, DeliveryOutcome, Redeliver, Reject
from effectonce.core.retry import Retry
from effectonce.guard.dispatch import dispatcher
from effectonce.integrations.aws_lambda import sqs_batch
from effectonce.integrations.webhooks import github, stripe
from effectonce.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> eo.Store:
    return eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)


class HandlerForm:
    """A guarded handler in either form, and a dispatcher that is called the same way."""

    def __init__(self, name: str) -> None:
        self.name = name

    def dispatcher(
        self, store: eo.Store, work: Callable[[str], Any], retry: Retry | None = None, **options: Any
    ) -> Callable[..., DeliveryOutcome]:
        if self.name == "sync":

            @eo.once(store, scope=eo.GLOBAL, key="key", returns=Any, **options)
            def handle(key: str, payload: int = 0) -> Any:
                return work(key)

            return dispatcher(handle, retry=retry)

        @eo.once(store, scope=eo.GLOBAL, key="key", returns=Any, **options)
        async def ahandle(key: str, payload: int = 0) -> Any:
            return work(key)

        adispatch = dispatcher(ahandle, retry=retry)
        return lambda *args, **kwargs: asyncio.run(adispatch(*args, **kwargs))


@pytest.fixture(params=["sync", "async"])
def form(request: pytest.FixtureRequest) -> HandlerForm:
    return HandlerForm(request.param)


# -- dispatch


def test_done_now_and_done_before_are_acked(store: eo.Store, form: HandlerForm) -> None:
    dispatch = form.dispatcher(store, lambda key: f"receipt {key}")
    assert [dispatch("p1"), dispatch("p1")] == [Ack("receipt p1", False), Ack("receipt p1", True)]


def test_done_without_a_result_is_acked_too(store: eo.Store, form: HandlerForm) -> None:
    dispatch = form.dispatcher(store, lambda key: object())
    first = dispatch("p1")
    assert isinstance(first, Ack)
    assert dispatch("p1") == Ack(None, True)


def test_f06_a_duplicate_of_a_running_one_comes_again_and_is_never_acked(store: eo.Store, form: HandlerForm) -> None:
    inner: list[DeliveryOutcome] = []

    def work(key: str) -> None:
        thread = threading.Thread(target=lambda: inner.append(dispatch(key)))
        thread.start()
        thread.join(30)

    dispatch = form.dispatcher(store, work)
    assert isinstance(dispatch("p1"), Ack)
    assert isinstance(inner[0], Redeliver)
    assert isinstance(inner[0].error, eo.InProgress)


def test_an_error_comes_again_later_and_later(store: eo.Store, form: HandlerForm) -> None:
    def work(key: str) -> None:
        raise RuntimeError("card reader on fire")

    dispatch = form.dispatcher(store, work, Retry(None, first="10s"))
    again = dispatch("p1")
    assert isinstance(again, Redeliver)
    assert 0 <= again.after <= 10
    assert isinstance(again.error, RuntimeError)


def test_what_no_redelivery_can_mend_is_dead(store: eo.Store, form: HandlerForm) -> None:
    def work(key: str) -> None:
        raise ValueError(key)

    dead = [
        form.dispatcher(store, work, permanent=(ValueError,))("p1"),
        form.dispatcher(store, work, permanent=(ValueError,))("p1"),
        form.dispatcher(store, work, on_error="doubt")("p2"),
        form.dispatcher(store, work, on_error="doubt")("p2"),
        form.dispatcher(store, work, Retry(on={ValueError: "dead"}))("p3"),
        form.dispatcher(store, work)(""),
    ]
    errors = [type(each.error) for each in dead if isinstance(each, Reject)]
    assert errors == [ValueError, ValueError, ValueError, eo.InDoubt, ValueError, eo.MissingKey]
    counted = form.dispatcher(store, work, max_attempts=2)
    assert [type(counted("p4")) for _ in range(3)] == [Redeliver, Redeliver, Reject]
    compared = form.dispatcher(store, lambda key: None, fingerprint="payload")
    assert isinstance(compared("p5", 1), Ack)
    other = compared("p5", 2)
    assert isinstance(other, Reject)
    assert isinstance(other.error, eo.PayloadMismatch)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_gets_and_gives_models(store: eo.Store, is_async: bool) -> None:
    """Of a loop's JSON, and of Lambda's; what is none can never be handled."""
    charged: list[Any] = []

    def charge(invoice: Invoice) -> Invoice:
        charged.append(invoice)
        return invoice

    async def charge_async(invoice: Invoice) -> Invoice:
        return charge(invoice)

    guarded: Any = eo.once(store, scope="charge", key="invoice.customer")(charge_async if is_async else charge)
    dispatch: Any = eo.dispatcher(guarded)

    def sent(payload: Any) -> DeliveryOutcome:
        answer = dispatch(payload)
        return asyncio.run(answer) if is_async else answer

    acme = Invoice(customer="acme", amount=7)
    assert sent({"customer": "acme", "amount": 7}) == Ack(acme)
    assert sent(acme) == Ack(acme, replayed=True)
    refused = sent({"customer": "acme"})
    assert isinstance(refused, Reject)
    assert isinstance(refused.error, eo.Undecodable)
    event = {"Records": [record(1, '{"customer": "acme", "amount": 7}'), record(2, '{"customer": 1}')]}
    assert sqs_batch(guarded)(event, None) == {"batchItemFailures": [{"itemIdentifier": "m2"}]}
    assert charged == [acme]


def test_a_message_tells_its_attempt_to_the_backoff(store: eo.Store) -> None:
    @eo.once(store, scope="charge")
    def handle(message: eo.Message[int]) -> None:
        raise RuntimeError

    dispatch = dispatcher(handle, retry=Retry(3, first="1s"))
    verdicts = [dispatch(eo.Message(data=1, id="p1", attempt=attempt)) for attempt in (1, 2, 3)]
    assert [type(each) for each in verdicts] == [Redeliver, Redeliver, Reject]


def test_a_program_that_is_wrong_is_told_and_nothing_is_acked(store: eo.Store) -> None:
    with pytest.raises(eo.ConfigurationError, match="under @once"):
        dispatcher(lambda key: None)  # type: ignore[call-overload]

    @eo.once(store, scope="charge", key="key")
    def handle(key: str) -> None:
        handle(key)

    with pytest.raises(eo.Reentered):
        dispatcher(handle)("p1")


# -- Lambda


def record(number: int, body: Any, group: str | None = None, queue: str = "orders.fifo") -> dict[str, Any]:
    attributes = {} if group is None else {"MessageGroupId": group}
    return {
        "messageId": f"m{number}",
        "body": body if isinstance(body, str) else json.dumps(body),
        "attributes": attributes,
        "eventSourceARN": f"arn:aws:sqs:eu-central-1:123456789012:{queue}",
    }


@pytest.mark.parametrize("is_async", [False, True])
def test_only_the_records_that_failed_are_reported(store: eo.Store, is_async: bool) -> None:
    charged: list[str] = []

    def work(order: Any) -> None:
        if order["id"] == "bad":
            raise RuntimeError
        charged.append(order["id"])

    if is_async:

        @eo.once(store, scope="charge", key="order.id")
        async def acharge(order: dict[str, str]) -> None:
            work(order)

        handler = sqs_batch(acharge)
    else:

        @eo.once(store, scope="charge", key="order.id")
        def charge(order: dict[str, str]) -> None:
            work(order)

        handler = sqs_batch(charge)
    records = [record(1, {"id": "a"}), record(2, {"id": "bad"}), record(3, "{"), record(4, {}), record(5, {"id": "b"})]
    event = {"Records": [*records, record(6, {"id": "a"})]}
    failed = {"batchItemFailures": [{"itemIdentifier": name} for name in ("m2", "m3", "m4")]}
    assert [handler(event, None), handler(event, None)] == [failed, failed]
    assert charged == ["a", "b"]


@pytest.mark.parametrize(
    ("queue", "failed", "done"), [("orders.fifo", ["m1", "m2", "m4"], ["b1"]), ("orders", ["m1"], ["a2", "b1", "a3"])]
)
def test_a_fifo_group_stops_at_its_first_failure(
    store: eo.Store, queue: str, failed: list[str], done: list[str]
) -> None:
    """Else the later ones would overtake it. A standard queue has groups too, for fairness: reported as failed without
    having been tried, their messages would end in the dead letters."""
    charged: list[str] = []

    @eo.once(store, scope="charge", key="order_id")
    def charge(order_id: str, amount: int) -> None:
        if amount < 0:
            raise RuntimeError
        charged.append(order_id)

    handler = sqs_batch(charge, read=lambda record: tuple(json.loads(record["body"])))
    batch = [
        record(1, ["a1", -1], "a", queue),
        record(2, ["a2", 1], "a", queue),
        record(3, ["b1", 1], "b", queue),
        record(4, ["a3", 1], "a", queue),
    ]
    answer = handler({"Records": batch}, None)
    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == failed
    assert charged == done


def test_a_store_that_is_down_fails_the_record_and_not_the_function(clock: ManualClock) -> None:
    """F36: nothing is acked, nothing runs."""
    store = eo.connect("redis://127.0.0.1:1/0")

    @eo.once(store, scope="charge", key="order_id")
    def charge(order_id: str) -> None:
        raise AssertionError("it ran")

    assert sqs_batch(charge)({"Records": [record(1, '"a"')]}, None)["batchItemFailures"] == [{"itemIdentifier": "m1"}]


# -- webhooks

NOW = 1_767_225_600
EVENT = b'{"id": "evt_1", "type": "charge.succeeded", "created": 1767225600, "data": {"object": {"amount": 7}}}'


def signed(body: bytes = EVENT, secret: str = "whsec_1", at: int = NOW) -> dict[str, str]:
    code = hmac.new(secret.encode(), b"%d.%b" % (at, body), hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={at},v1={code},v0=old"}


def test_an_event_of_stripes_is_handled_once(store: eo.Store) -> None:
    receive = stripe("whsec_1", now=lambda: NOW)
    handled: list[Any] = []

    @eo.once(store, scope="stripe-webhooks")
    def handle(message: eo.Message[Any]) -> None:
        handled.append((message.type, message.data["data"]["object"]["amount"]))

    for at in (NOW, NOW + 60):  # a redelivery is signed anew
        handle(receive(EVENT, signed(at=at)))
    assert handled == [("charge.succeeded", 7)]
    assert receive(EVENT, signed()).key == "evt_1"


def test_a_thin_event_of_stripes_is_an_event_too() -> None:
    """Its time is text; refused, it would have been delivered again for three days, and then never."""
    thin = b'{"id": "evt_2", "object": "v2.core.event", "type": "v1.x", "created": "2024-09-17T06:20:52.246Z"}'
    event = stripe("whsec_1", now=lambda: NOW)(thin, signed(thin))
    assert (event.key, event.time) == ("evt_2", datetime(2024, 9, 17, 6, 20, 52, 246_000, UTC))


def test_one_of_several_signatures_is_enough_and_only_of_the_version_that_counts() -> None:
    """While a secret is rolled, Stripe signs with both."""
    receive, right = stripe("whsec_1", now=lambda: NOW), signed()["stripe-signature"]
    other = signed(secret="whsec_2")["stripe-signature"].split(",")[1]
    for header in (right.replace(",", f",{other},", 1), right.replace("v0=old", other), right.replace(",", ", ")):
        assert receive(EVENT, {"Stripe-Signature": header}).id == "evt_1"
    with pytest.raises(eo.ForgedMessage):
        receive(EVENT, {"Stripe-Signature": f"t={NOW},{other},{right.split(',')[1].replace('v1', 'v2')}"})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Stripe-Signature": ""},
        {"Stripe-Signature": "nonsense"},
        {"Stripe-Signature": "t=x,v1=y"},
        {"Stripe-Signature": f"t={NOW}"},
        {"Stripe-Signature": f"t={NOW},t={NOW},v1=é"},
        {"Stripe-Signature": f"t={NOW},v1=\udcff"},  # as aiohttp reads a byte that is not UTF-8
        signed(secret="another"),
        signed(body=EVENT + b" "),
        signed(at=NOW - 301),
        signed(at=NOW + 301),
        {"Stripe-Signature": signed()["stripe-signature"].replace("v1=", "v0=", 1)},
    ],
)
def test_f67_a_forged_event_is_refused_before_it_is_read(headers: dict[str, str]) -> None:
    with pytest.raises(eo.ForgedMessage):
        stripe("whsec_1", now=lambda: NOW)(EVENT, headers)


@pytest.mark.parametrize("at", [NOW - 300, NOW + 300])
def test_a_signature_may_be_as_old_as_the_tolerance(at: int) -> None:
    assert stripe("whsec_1", now=lambda: NOW)(EVENT, signed(at=at)).id == "evt_1"
    with pytest.raises(eo.ForgedMessage, match="too old"):
        stripe("whsec_1", now=lambda: NOW, tolerance="299s")(EVENT, signed(at=at))


def test_an_event_without_a_time_has_that_of_its_signature() -> None:
    body = b'{"id": "evt_1", "type": "charge.succeeded"}'
    assert stripe("whsec_1", now=lambda: NOW)(body, signed(body)).time == datetime.fromtimestamp(NOW, UTC)


def test_a_signed_body_that_is_nested_too_deeply_is_undecodable() -> None:
    body = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(eo.Undecodable, match="is not JSON"):
        stripe("whsec_1", now=lambda: NOW)(body, signed(body))


@pytest.mark.parametrize("missing", ["X-GitHub-Delivery", "X-GitHub-Event"])
def test_a_delivery_of_githubs_without_its_id_or_kind_is_undecodable(missing: str) -> None:
    code = f"sha256={hmac.new(b'secret', b'{}', hashlib.sha256).hexdigest()}"
    headers = {"x-hub-signature-256": code, "X-GITHUB-DELIVERY": "d1", "x-github-event": "issues"}
    assert github("secret")(b"{}", headers).id == "d1", "whatever the case of its headers"
    with pytest.raises(eo.Undecodable, match="has no github id or type"):
        github("secret")(b"{}", {name: value for name, value in headers.items() if name.lower() != missing.lower()})


def test_a_secret_can_be_rolled() -> None:
    receive = stripe("whsec_2", "whsec_1", now=lambda: NOW)
    assert [receive(EVENT, signed(secret=secret)).id for secret in ("whsec_1", "whsec_2")] == ["evt_1", "evt_1"]
    for wrong in ((), ("",)):
        with pytest.raises(eo.ConfigurationError):
            stripe(*wrong)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"id": 7}',
        b'{"id": 7, "type": "t"}',
        b'{"id": "", "type": "t"}',
        b'{"id": "e", "type": "t", "created": "x"}',
    ],
)
def test_what_is_signed_and_no_event_is_undecodable(body: bytes) -> None:
    with pytest.raises(eo.Undecodable) as raised:
        stripe("whsec_1", now=lambda: NOW)(body, signed(body))
    assert not isinstance(raised.value, eo.ForgedMessage)


def test_a_delivery_of_githubs() -> None:
    body, receive = b'{"action": "opened"}', github("secret")
    code = f"sha256={hmac.new(b'secret', body, hashlib.sha256).hexdigest()}"
    headers = {"X-Hub-Signature-256": code, "X-GitHub-Delivery": "d1", "X-GitHub-Event": "issues"}
    message = receive(body, headers)
    assert (message.key, message.type, message.data) == ("d1", "issues", {"action": "opened"})
    for forged in ({**headers, "X-Hub-Signature-256": "sha256=0"}, {"X-GitHub-Delivery": "d1"}):
        with pytest.raises(eo.ForgedMessage):
            receive(body, forged)
    with pytest.raises(eo.ForgedMessage):
        receive(body + b" ", headers)
    with pytest.raises(eo.Undecodable):
        receive(body, {"X-Hub-Signature-256": code})


# -- agents' tools


class Invoice(BaseModel):
    customer: str
    amount: int


async def test_a_tool_that_is_called_again_with_the_same_arguments_has_its_effect_once(store: eo.Store) -> None:
    """Through an MCP server: each call has a new id, and what the model plans twice is sent once for each task."""
    sent: list[str] = []
    server = MCPServer("billing")

    @server.tool(annotations=ToolAnnotations(idempotentHint=True))
    @tool_once(store, per="task_id")
    def send_invoice(task_id: str, invoice: Invoice) -> str:
        """Send an invoice."""
        sent.append(f"{task_id} {invoice.customer}")
        return f"invoice {len(sent)}"

    (tool,) = await server.list_tools()
    assert tool.annotations is not None
    assert set(tool.input_schema["properties"]) == {"task_id", "invoice"}

    async def call(task: str, customer: str) -> str:
        answer: Any = await server.call_tool(
            "send_invoice", {"task_id": task, "invoice": {"customer": customer, "amount": 7}}
        )
        return str(answer)

    answers = [await call("t1", "acme"), await call("t1", "acme"), await call("t2", "acme"), await call("t1", "globex")]
    assert sent == ["t1 acme", "t2 acme", "t1 globex"]
    assert answers[0] == answers[1] != answers[2]


def test_what_a_framework_fills_in_is_no_part_of_the_call(store: eo.Store) -> None:
    runs: list[Any] = []

    @tool_once(store, per=eo.GLOBAL, scope="search")
    def search(query: str, ctx: object = None, limit: int = 3) -> int:
        runs.append(query)
        return len(runs)

    assert [search("a", object()), search("a", ctx=object(), limit=3), search("a", limit=4)] == [1, 1, 2]

    @tool_once(store, per="task_id", scope="remember")
    def remember(task_id: str, context: str) -> int:  # a text of the model's, though frameworks use the name
        runs.append(context)
        return len(runs)

    assert [remember("t", "one"), remember("t", "two"), remember("t", "one")] == [3, 4, 3]
    with pytest.raises(eo.ConfigurationError, match="no arguments"):
        tool_once(store, per=eo.GLOBAL)(lambda: None)
    with pytest.raises(eo.ConfigurationError, match="key"):
        tool_once(store, per="q", key="q")

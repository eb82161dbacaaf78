"""`effectonce asyncapi`: the document of a worker, and that the checker reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

import effectonce as eo
from effectonce import keys
from effectonce.cli.asyncapi import describe_worker
from effectonce.envelopes import CloudEvents, Raw
from effectonce_lint.cli import main as lint

from .conftest import Run

APP = """\
import msgspec
import effectonce as eo

worker = eo.Worker(eo.connect_broker("memory://"), store=eo.connect("memory://"), name="balances")


class Deposit(msgspec.Struct):
    account: str
    amount: int


@worker.handler("deposits", type="deposit.made", key="message.data.account", retention="30d")
def credit(message: eo.Message[Deposit]) -> None:
    \"\"\"Charge the fee, and credit
    the account.

    Once.
    \"\"\"
"""


class Amount(pydantic.BaseModel):
    cents: int


class Order(pydantic.BaseModel):
    total: Amount


class Line(msgspec.Struct):
    price: tuple[int, str]


class Paid(msgspec.Struct):
    lines: list[Line]
    order: Order
    rest: dict[str, object]


def make_worker(envelope: Any = None, **options: Any) -> eo.Worker:
    broker = eo.connect_broker("memory://")
    return eo.Worker(broker, envelope=envelope, name="billing", **(options or {"store": eo.connect("memory://")}))


def full_worker() -> eo.Worker:
    worker = make_worker()

    @worker.handler("shop/orders", type="order.paid")
    def charge(message: eo.Message[Paid]) -> None: ...

    @worker.handler("shop/orders", mode="seen", key=lambda message: message.id)
    @worker.handler("files", type="file", key=keys.time_window("message.id", every="1d", at="message.time"))
    def store_file(message: eo.Message[bytes]) -> None: ...

    @worker.handler("returns", key=("message.type", "message.data.id"), to="files")
    def refund(message: eo.Message[Any]) -> eo.Message[bytes]:
        raise NotImplementedError

    return worker


def resolve(document: Any, reference: dict[str, str]) -> Any:
    for part in reference["$ref"].removeprefix("#/").split("/"):
        document = document[part.replace("~1", "/").replace("~0", "~")]
    return document


def references_of(node: Any) -> list[dict[str, str]]:
    if isinstance(node, list):
        return [found for item in node for found in references_of(item)]
    if not isinstance(node, dict):
        return []
    return [node] if "$ref" in node else [found for value in node.values() for found in references_of(value)]


def lint_findings(tmp_path: Path, document: Any, capsys: pytest.CaptureFixture[str]) -> list[str]:
    path = tmp_path / "asyncapi.json"
    path.write_text(json.dumps(document, indent=2))
    code = lint([str(path), "--no-cache", "--json", "--all", "--designs"])
    output = json.loads(capsys.readouterr().out)
    assert code == (1 if output["findings"] else 0)
    return [finding["rule"] for finding in output["findings"]]


def test_a_worker_is_written_as_asyncapi(run: Run, tmp_path: Path) -> None:
    (tmp_path / "balance_app.py").write_text(APP)
    done = run("asyncapi", "balance_app:worker", "--app-version", "2.1.0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "asyncapi": "3.0.0",
        "info": {"title": "balances", "version": "2.1.0"},
        "defaultContentType": "application/json",
        "channels": {
            "deposits": {
                "address": "deposits",
                "messages": {
                    "deposit.made": {
                        "x-envelope": "CloudEvents",
                        "name": "deposit.made",
                        "contentType": "application/cloudevents+json",
                        "payload": {
                            "type": "object",
                            "required": ["specversion", "id", "source", "type", "data"],
                            "properties": {
                                "specversion": {"const": "1.0"},
                                "id": {"type": "string", "minLength": 1},
                                "source": {"type": "string", "minLength": 1},
                                "type": {"const": "deposit.made"},
                                "time": {"type": "string", "format": "date-time"},
                                "idempotencykey": {"type": "string"},
                                "data": {"$ref": "#/components/schemas/Deposit"},
                            },
                        },
                    }
                },
            }
        },
        "operations": {
            "credit": {
                "action": "receive",
                "channel": {"$ref": "#/channels/deposits"},
                "summary": "Charge the fee, and credit the account.",
                "messages": [{"$ref": "#/channels/deposits/messages/deposit.made"}],
                "x-handler": "balance_app:credit",
                "x-idempotency": {
                    "mode": "lease",
                    "key": "message.data.account",
                    "scope": "deposits/deposit.made/balances",
                    "retention": "30d",
                },
            }
        },
        "components": {
            "schemas": {
                "Deposit": {
                    "title": "Deposit",
                    "type": "object",
                    "properties": {"account": {"type": "string"}, "amount": {"type": "integer"}},
                    "required": ["account", "amount"],
                }
            }
        },
    }


def test_the_checker_reads_it_without_a_finding(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "balance_app.py").write_text(APP)
    document = json.loads(run("asyncapi", "balance_app:worker").stdout)
    assert lint_findings(tmp_path, document, capsys) == []
    assert lint_findings(tmp_path, describe_worker(full_worker(), "1"), capsys) == []
    del document["operations"]["credit"]["x-idempotency"]
    assert lint_findings(tmp_path, document, capsys) == ["P11"], "it reads the operation"


def test_a_key_that_the_checker_warns_of_is_found_in_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = make_worker()

    @worker.handler("orders", key=keys.content_hash("message.data"))
    def charge(message: eo.Message[dict[str, int]]) -> None: ...

    assert lint_findings(tmp_path, describe_worker(worker, "1"), capsys) == ["EO302"]


def test_every_reference_leads_to_something() -> None:
    document = describe_worker(full_worker(), "1")
    found = references_of(document)
    assert len(found) > 10
    for reference in found:
        assert isinstance(resolve(document, reference), dict), reference


def test_handlers_and_keys_are_named() -> None:
    operations = describe_worker(full_worker(), "1")["operations"]
    facts = {name: operation.get("x-idempotency") for name, operation in operations.items()}
    prefix = "full_worker._locals_."
    assert {name.removeprefix(prefix) for name in facts} == {
        "charge", "store_file.files.file", "store_file.shop/orders.*", "refund", "refund.send",
    }  # fmt: skip
    assert facts[f"{prefix}charge"]["key"] == "message.key"
    assert facts[f"{prefix}store_file.files.file"]["key"] == "time_window(message.id, every=1d)"
    assert facts[f"{prefix}store_file.shop/orders.*"]["mode"] == "seen"
    assert facts[f"{prefix}store_file.shop/orders.*"]["key"] == "function full_worker.<locals>.<lambda>"
    assert facts[f"{prefix}refund"]["key"] == "(message.type, message.data.id)"
    assert operations[f"{prefix}refund.send"] == {"action": "send", "channel": {"$ref": "#/channels/files"}}


def test_schemas_of_pydantic_models_and_tuples_are_those_of_asyncapi() -> None:
    document = describe_worker(full_worker(), "1")
    schemas = document["components"]["schemas"]
    assert schemas["Line"]["properties"]["price"] == {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": [{"type": "integer"}, {"type": "string"}],
        "additionalItems": False,
    }
    assert resolve(document, schemas["Paid"]["properties"]["order"]["properties"]["total"])["title"] == "Amount"
    rest = schemas["Paid"]["properties"]["rest"]
    assert rest == {"type": "object", "additionalProperties": {"description": "any JSON value"}}


def test_a_payload_is_the_body_where_the_envelope_is_known() -> None:
    class Case(NamedTuple):
        envelope: Any
        content_type: str
        payload: Any

    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    for case in (
        Case(Raw(key="headers.id"), "application/json", schema),
        Case(CloudEvents("binary"), "application/json", schema),
    ):
        worker = make_worker(case.envelope)

        @worker.handler("orders")
        def charge(message: eo.Message[dict[str, int]]) -> None: ...

        message = describe_worker(worker, "1")["channels"]["orders"]["messages"]["*"]
        assert message == {
            "x-envelope": type(case.envelope).__name__,
            "contentType": case.content_type,
            "payload": case.payload,
        }


def test_bytes_are_data_base64_in_a_structured_event() -> None:
    document = describe_worker(full_worker(), "1")
    payload = document["channels"]["files"]["messages"]["file"]["payload"]
    assert payload["properties"]["data_base64"] == {"type": "string", "contentEncoding": "base64"}
    assert "data_base64" in payload["required"]
    assert "data" not in document["channels"]["returns"]["messages"]["*"]["payload"]["required"], "any data will do"


def test_in_a_transaction_the_inbox_is_the_guard() -> None:
    inbox = eo.Inbox(scope="billing", retention="20d")
    worker = make_worker(inbox=inbox, connect=lambda: None)

    @worker.handler("orders")
    def book(connection: Any, message: eo.Message[dict[str, int]]) -> None: ...

    (operation,) = describe_worker(worker, "1")["operations"].values()
    assert (operation["x-idempotency"]["mode"], operation["x-idempotency"]["retention"]) == ("transaction", "20d")


def test_a_handler_whose_message_may_be_lost_says_so() -> None:
    worker = make_worker()

    @worker.handler("orders", ack="first")
    def push(message: eo.Message[dict[str, int]]) -> None: ...

    (operation,) = describe_worker(worker, "1")["operations"].values()
    assert (operation["x-idempotency"]["mode"], operation["x-idempotency"]["ack"]) == ("lease", "first")


def test_what_is_no_worker_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "no_worker_app.py").write_text("worker = 7\n")
    done = run("asyncapi", "no_worker_app:worker")
    assert (done.returncode, "not Worker" in done.stderr) == (2, True)

"""BabelQueue's own conformance set, every case of it, and the real package on the other side."""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import time
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import babelqueue
import pytest
from babelqueue.codec import EnvelopeCodec
from msgspec.structs import replace

import effectonce as eo
from effectonce.babelqueue import BabelQueue
from effectonce.babelqueue import headers as bq_headers
from effectonce.babelqueue.bindings import BINDINGS
from effectonce.babelqueue.dead_letters import dead_letter_record, original_body
from effectonce.backends.kafka.records import make_record
from effectonce.backends.servicebus import messages as servicebus_messages
from effectonce.backends.sqs import messages as sqs_messages
from effectonce.contracts import Packet
from effectonce.message import BYPASS_PREFIX, REDRIVEN_HEADER

HERE = Path(__file__).parent / "fixtures"
#: A newer or larger set than ours may lie beside the checkout.
BESIDE = Path(__file__).parents[3] / "shared" / "conformance" / "babelqueue"
SETS = [folder for folder in (HERE, BESIDE) if folder.is_dir()]
BQ = BabelQueue()


def manifests() -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in SETS:
        yield folder, json.loads((folder / "manifest.json").read_text())


def cases(*path: str) -> Any:
    """Every case in a section of every set, as parameters ``folder, case``."""
    found = []
    for folder, manifest in manifests():
        section: Any = manifest
        for name in path:
            section = section.get(name, {})
        for number, case in enumerate(section if isinstance(section, list) else section.get("cases", [])):
            label = case.get("name") or case.get("value", "absent")
            found.append(pytest.param(folder, case, id=f"{folder.parents[1].name}-{number}-{label!r}"))
    return pytest.mark.parametrize(("folder", "case"), found)


def section(name: str) -> Any:
    """A section that is one case itself."""
    found = [(folder, manifest[name]) for folder, manifest in manifests() if name in manifest]
    return pytest.mark.parametrize(("folder", "case"), found, ids=[folder.parents[1].name for folder, _ in found])


def read(folder: Path, file: str) -> eo.Message[Any]:
    return BQ.decode(Packet(body=(folder / file).read_bytes()))


def at(document: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, and {} is not []."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def check_document(document: Any, case: dict[str, Any]) -> None:
    for pointer, value in case.get("expect_preserved", {}).items():
        assert same(at(document, pointer), value), pointer
    for pointer in case.get("expect_absent_after_reencode", ()):
        with pytest.raises(KeyError):
            at(document, pointer)


# -- the manifest, section by section


@cases("cases")
def test_an_envelope_is_read_or_refused(folder: Path, case: dict[str, Any]) -> None:
    if not case["valid"]:
        with pytest.raises(eo.Undecodable):
            read(folder, case["file"])
        return
    message, expect = read(folder, case["file"]), case["expect"]
    assert (message.type, message.attempt - 1) == (expect["urn"], expect["attempts"])
    assert same(message.data, expect["data"])
    written = json.loads(BQ.encode(message).body)
    assert (written["meta"]["lang"], written["meta"]["schema_version"]) == (expect["lang"], expect["schema_version"])
    for name, value in expect.get("dead_letter", {}).items():
        assert written["dead_letter"][name] == value


@cases("retry_backoff")
def test_a_retry_waits_as_long_as_the_formula_says(folder: Path, case: dict[str, Any]) -> None:
    retry = eo.Retry(
        None,
        first=case["retry_backoff"],
        factor=case["retry_backoff_multiplier"],
        cap=case["retry_backoff_max"] or None,
        jitter=case["retry_jitter"] == "full",
    )
    for _ in range(20):
        delay = retry.delay_after(ValueError(), case["n"])
        assert delay is not None
        if "expect_delay_seconds" in case:
            assert delay == case["expect_delay_seconds"]
        else:
            bounds = case["expect_delay_range_seconds"]
            assert bounds["min"] <= delay <= bounds["max"]


@cases("traceparent")
def test_a_trace_is_known_by_its_header_else_by_its_trace_id(folder: Path, case: dict[str, Any]) -> None:
    headers = {} if case["traceparent"] is None else {"traceparent": case["traceparent"]}
    sent = BQ.encode(eo.Message(type="urn:a", data={}, trace_id=case["trace_id"], headers=headers))
    traced, expect = BQ.decode(sent).trace_context, case["expect"]
    assert traced is not None
    assert traced.trace_id == expect["trace_id_hex"]
    assert (traced.parent_id, traced.flags) == (expect.get("parent_span_id"), expect.get("flags"))


@section("idempotency")
def test_the_key_is_the_messages_own_id(folder: Path, case: dict[str, Any]) -> None:
    rule = case["dedup_key"]
    message = read(folder, rule["envelope_file"])
    assert message.key == message.id == rule["expected_key"]


@cases("idempotency", "sequences")
def test_a_sequence_of_deliveries_has_the_effects_that_it_should(folder: Path, case: dict[str, Any]) -> None:
    """In mode S, as BabelQueue's own helper; a message without an id fails open only where it is told to."""
    with eo.connect("memory://") as store:
        ran: list[str] = []
        outcome = "ok"

        @eo.once(store, scope="s", mode="seen", on_missing_key="run")
        def handle(message: eo.Message[Any]) -> None:
            ran.append(message.id)
            if outcome == "throw":
                raise RuntimeError

        for delivery in case["deliveries"]:
            if delivery.get("forget_before"):
                store.forget("s", delivery["meta_id"])
            before, outcome = len(ran), delivery.get("outcome", "ok")
            template = json.loads((folder / "fixtures/order-created.json").read_text())
            template["meta"]["id"] = delivery["meta_id"]
            message = BQ.decode(Packet(body=json.dumps(template).encode()))
            if outcome == "throw":
                with pytest.raises(RuntimeError):
                    handle(message)
            else:
                handle(message)
            assert (len(ran) > before) == (delivery["expect_effect"] == "run")
        assert len(ran) == case["expected_effects"]


@cases("roundtrip")
def test_what_is_not_known_is_sent_on(folder: Path, case: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        message = read(folder, case["file"])
    assert not caplog.records
    body = BQ.encode(replace(message, attempt=message.attempt + 1)).body
    document = json.loads(body)
    if given := case.get("apply_dead_letter"):
        block = {**given, "error": None, "exception": None, "failed_at": 1, "attempts": 3, "lang": "python"}
        document = json.loads(dead_letter_record(body, block))
        for name, value in case["expect_dead_letter"].items():
            assert document["dead_letter"][name] == value
    assert document["attempts"] == case["expect_attempts"]
    check_document(document, case)


@cases("data_shape")
def test_data_is_an_object(folder: Path, case: dict[str, Any]) -> None:
    if case["mode"] == "encode":
        body = BQ.encode(eo.Message(type=case["urn"], data=case["data"]), case["queue"]).body
        assert f'"data":{case["expect_encoded_data_json"]},' in body.decode()
    elif case["valid"]:
        read(folder, case["file"])
    else:
        with pytest.raises(eo.Undecodable):
            read(folder, case["file"])


@cases("forbidden_keys")
def test_a_forbidden_key_is_dropped_with_a_warning(
    folder: Path, case: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        message = read(folder, case["file"])
    assert any(case["forbidden_key"] in record.getMessage() for record in caplog.records)
    check_document(json.loads(BQ.encode(message).body), case)


@cases("extension_write")
def test_meta_of_ones_own_is_written_and_sent_on(folder: Path, case: dict[str, Any]) -> None:
    envelope = BabelQueue(meta=case["meta"])
    first = envelope.encode(eo.Message(type=case["urn"], data=case["data"]), case["queue"])
    message = BQ.decode(first)
    again = BQ.encode(replace(message, attempt=message.attempt + 1))
    for body, attempts in ((first.body, 0), (again.body, 1)):
        document = json.loads(body)
        assert document["attempts"] == attempts
        check_document(document, {"expect_preserved": case["expect_envelope"]})


@cases("encode_reject")
def test_what_no_envelope_may_have_is_not_written(folder: Path, case: dict[str, Any]) -> None:
    if "meta_entries" in case:
        pytest.skip("one mapping cannot name a key twice")
    message = eo.Message(type=case["urn"], data=case["data"])
    kept = BQ.decode(BQ.encode(message, case["queue"]))
    members = json.loads(kept.headers["bq-envelope"])
    members |= case.get("extras_top", {})
    members["meta"] |= case.get("extras_meta", {})
    carried = replace(kept, headers={"bq-envelope": json.dumps(members)})
    with pytest.raises(eo.ConfigurationError, match=case["offending_key"]):
        BabelQueue(meta=case.get("meta")).encode(carried, case["queue"])


@cases("job_type")
def test_a_job_that_is_no_string_is_ignored_with_a_warning(
    folder: Path, case: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    if not case["valid"]:
        with pytest.raises(eo.Undecodable):
            read(folder, case["file"])
        return
    with caplog.at_level(logging.WARNING):
        assert read(folder, case["file"]).type == case["expect"]["urn"]
    assert bool(caplog.records) == case["expect_warning"]


@cases("identity_verdict")
def test_a_body_is_poison_or_not(folder: Path, case: dict[str, Any]) -> None:
    if case["expect"] == "poison":
        with pytest.raises(eo.Undecodable):
            BQ.decode(Packet(body=case["body"].encode()))
        return
    BQ.decode(Packet(body=case["body"].encode()))


@cases("poison_dlq")
def test_a_poison_body_is_kept_in_the_shape_that_others_read(folder: Path, case: dict[str, Any]) -> None:
    body = base64.b64decode(case["body_base64"]) if "body_base64" in case else case["body"].encode()
    record = dead_letter_record(body, {"reason": "poison", "original_queue": "orders"})
    expect = case["expect"]
    document = json.loads(record)
    block = document.pop("dead_letter")
    assert (block["reason"], block["original_queue"]) == ("poison", "orders")
    if expect["shape"] == "splice_or_wrapper" and "raw" not in document:
        assert all(literal in record.decode() for literal in expect["splice_literals"])
        assert set(document) == set(expect["splice_keys"])
    else:
        assert same(document, expect["record"])
    assert original_body(record)[0] == body


# -- what each broker shows of it


def test_rabbitmq_gets_properties_and_typed_headers() -> None:
    for folder, manifest in manifests():
        rule = manifest["rabbitmq"]["property_projection"]
        packet = BQ.encode(read(folder, rule["envelope_file"])).for_broker("rabbitmq")
        typed = {name: int(text) if name in packet.numbers else text for name, text in packet.headers.items()}
        properties = {name.replace("_", "-"): value for name, value in rule["properties"].items()}
        assert properties.pop("message-id") == packet.id
        assert typed == {**properties, **rule["headers"]}


def test_kafka_gets_headers_and_a_timestamp(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, manifest in manifests():
        rule = manifest["kafka"]["property_projection"]
        packet = BQ.encode(read(folder, rule["envelope_file"]))
        created = json.loads(packet.body)["meta"]["created_at"]
        assert make_record(packet).timestamp == 0, "that is long ago"
        monkeypatch.setattr(time, "time", lambda: created / 1000 + 60)  # noqa: B023
        record = make_record(packet)
        assert {name: value.decode() for name, value in record.headers}.items() >= rule["headers"].items()
        assert record.timestamp == created
        monkeypatch.undo()


def test_sqs_gets_typed_attributes() -> None:
    for folder, manifest in manifests():
        rule = manifest["sqs"]["attribute_projection"]["message_attributes"]
        packet = BQ.encode(read(folder, manifest["sqs"]["attribute_projection"]["envelope_file"]))
        sent = sqs_messages.make_entry(packet)["MessageAttributes"]
        assert {name: sent.get(name) for name in rule} == rule


def test_service_bus_gets_fields_and_typed_properties() -> None:
    """But for the time of creation, which is text: its SDK writes no number of more than 32 bits."""
    for folder, manifest in manifests():
        rule = manifest["asb"]["property_projection"]
        message = servicebus_messages.make_message(BQ.encode(read(folder, rule["envelope_file"])))
        assert {name: getattr(message, name) for name in rule["message"]} == rule["message"]
        wanted = {
            **rule["application_properties"],
            bq_headers.CREATED: str(rule["application_properties"]["bq-created-at"]),
        }
        assert {name: message.application_properties[name] for name in wanted} == wanted


@cases("kafka", "attempts_reconciliation")
def test_on_kafka_the_header_counts(folder: Path, case: dict[str, Any]) -> None:
    packet = with_attempts(folder, case["body_attempts"])
    if case["header_attempts"] is not None:
        packet = replace(packet, headers={bq_headers.ATTEMPTS: str(case["header_attempts"])})
    assert BQ.decode(packet).attempt - 1 == case["expected_attempts"]


@cases("sqs", "attempts_reconciliation")
def test_on_sqs_the_higher_count_counts(folder: Path, case: dict[str, Any]) -> None:
    count = str(case["approximate_receive_count"])
    message = BQ.decode(with_attempts(folder, case["body_attempts"]))
    assert message.with_attempt(int(count) if count.isdigit() else 0).attempt - 1 == case["expected_attempts"]


@cases("asb", "attempts_reconciliation")
def test_on_service_bus_the_higher_count_counts(folder: Path, case: dict[str, Any]) -> None:
    message = BQ.decode(with_attempts(folder, case["body_attempts"]))
    assert message.with_attempt(case["delivery_count"]).attempt - 1 == case["expected_attempts"]


def with_attempts(folder: Path, attempts: int) -> Packet:
    document = json.loads((folder / "fixtures/order-created.json").read_text())
    return Packet(body=json.dumps({**document, "attempts": attempts}).encode())


@cases("kafka", "schema_version_gate")
def test_the_version_is_looked_at_before_the_body_on_kafka(folder: Path, case: dict[str, Any]) -> None:
    check_gate(folder, case)


@cases("sqs", "schema_version_gate")
def test_the_version_is_looked_at_before_the_body_on_sqs(folder: Path, case: dict[str, Any]) -> None:
    check_gate(folder, case)


@cases("asb", "schema_version_gate")
def test_the_version_is_looked_at_before_the_body_on_service_bus(folder: Path, case: dict[str, Any]) -> None:
    check_gate(folder, case)


def check_gate(folder: Path, case: dict[str, Any]) -> None:
    text = servicebus_messages.property_text(case.get("value"))
    headers = {} if text is None else {bq_headers.VERSION: text}
    body = (folder / "fixtures/order-created.json").read_bytes()
    if case["expect"] == "decode":
        BQ.decode(Packet(body=body, headers=headers))
        return
    for each in (body, b"not JSON at all"):
        with pytest.raises(eo.Undecodable, match="schema version"):
            BQ.decode(Packet(body=each, headers=headers))


# -- against the package itself


FILES = [pytest.param(file, id=f"{folder.parents[1].name}-{file.stem}") for folder in SETS for file in
         sorted((folder / "fixtures").glob("*.json"))]  # fmt: skip


@pytest.mark.parametrize("file", FILES)
def test_every_fixture_is_read_and_written_as_the_package_does(file: Path) -> None:
    """Byte for byte: their re-encoding, and ours."""
    body = file.read_bytes()
    theirs = accepted_by_package(body)
    if theirs is None:
        with pytest.raises(eo.Undecodable):
            BQ.decode(Packet(body=body))
        return
    assert BQ.encode(BQ.decode(Packet(body=body))).body == EnvelopeCodec.encode(theirs).encode()


def accepted_by_package(body: bytes) -> dict[str, Any] | None:
    """The envelope that the package's runtime hands to a handler; None: it does not."""
    text = body.decode("utf-8", "surrogateescape")
    if EnvelopeCodec.poison_cause(text) is not None:
        return None
    envelope = EnvelopeCodec.decode(text)
    version = (envelope.get("meta") or {}).get("schema_version")
    # By the manifest a consumer rejects a version that it does not know. The runtime looks at the header's only.
    return envelope if version in (None, 1) else None


VALUES = [None, True, 0, 1, -1, 2**63, 2**63 - 1, 1.5, 1e300, "", " ", "\t", "\u2003", "x", "1", [], [1], {}, {"a": 1},
          {"n": 10**400}, "\u00e9\u2615", "urn:x"]  # fmt: skip
NAMES = ["job", "urn", "JOB", "trace_id", "data", "meta", "attempts", "dead_letter", "timestamp", "other"]
INNER = [
    "id",
    "queue",
    "lang",
    "schema_version",
    "created_at",
    "ts",
    "max_retries",
    "reason",
    "failed_at",
    "error",
    "x",
]


def test_thousands_of_damaged_envelopes_are_judged_as_the_package_judges_them() -> None:
    """Members replaced, removed, repeated, retyped; and the bytes cut, doubled or swapped."""
    seed = int(os.environ.get("EFFECTONCE_TEST_SEED", "7"))
    dice = random.Random(seed)
    base = json.loads((HERE / "fixtures/order-created.json").read_text())
    refused = 0
    logging.getLogger("babelqueue.codec").disabled = True
    logging.getLogger("effectonce").disabled = True
    try:
        for _ in range(3000):
            body = damaged(base, dice)
            theirs = accepted_by_package(body)
            try:
                message = BQ.decode(Packet(body=body))
            except eo.Undecodable:
                refused += 1
                assert theirs is None, body
                continue
            assert theirs is not None, body
            assert message.type == EnvelopeCodec.urn(theirs), body
            # A negative count would buy a poison message retries. What is missing is written with its default.
            theirs |= {"attempts": max(theirs.get("attempts") or 0, 0), "data": theirs.get("data") or {}}
            assert message.data == theirs["data"], body
            if message.id:  # it is read without one, and the guard decides; it is never sent so
                assert same(json.loads(BQ.encode(message).body), theirs), body
    finally:
        logging.getLogger("babelqueue.codec").disabled = False
        logging.getLogger("effectonce").disabled = False
    assert 500 < refused < 2900


def damaged(base: dict[str, Any], dice: random.Random) -> bytes:
    pairs = [(name, dict(value) if isinstance(value, dict) else value) for name, value in base.items()]
    for _ in range(dice.randint(1, 2)):
        kind = dice.randrange(5)
        if kind == 0:
            pairs.insert(dice.randint(0, len(pairs)), (dice.choice(NAMES), deepcopy(dice.choice(VALUES))))
        elif kind == 1:
            pairs.pop(dice.randrange(len(pairs)))
        elif kind == 2:
            at = dice.randrange(len(pairs))
            pairs[at] = (pairs[at][0], deepcopy(dice.choice(VALUES)))
        else:
            name = dice.choice(["meta", "meta", "dead_letter"])
            meta = next((value for each, value in pairs if each == name and isinstance(value, dict)), None)
            if meta is None:
                pairs.append((name, {dice.choice(INNER): dice.choice(VALUES)}))
            else:
                meta[dice.choice(INNER)] = dice.choice(VALUES)
    text = ",".join(
        f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=dice.random() < 0.5)}" for name, value in pairs
    )
    body = f"{{{text}}}".encode()
    if dice.random() < 0.15:
        cut = dice.randrange(len(body))
        body = dice.choice(
            [body[:cut], body + b"x", b"\xef\xbb\xbf" + body, body[:cut] + b"\xff" + body[cut:], b" " + body]
        )
    return body


def test_a_message_of_ours_is_one_of_theirs() -> None:
    message = eo.Message(type="urn:babel:orders:created", data={"order_id": 7, "naïve": "☕"}, trace_id="t-1")
    packet = BQ.encode(message, "orders")
    theirs = EnvelopeCodec.decode(packet.body.decode())
    assert EnvelopeCodec.accepts(theirs)
    assert EnvelopeCodec.encode(theirs).encode() == packet.body
    assert list(theirs) == list(EnvelopeCodec.make("urn:x", {}))
    assert list(theirs["meta"]) == list(EnvelopeCodec.make("urn:x", {})["meta"])
    assert (theirs["meta"]["id"], theirs["meta"]["queue"], theirs["trace_id"]) == (message.id, "orders", "t-1")


def test_a_message_of_theirs_is_one_of_ours() -> None:
    body = EnvelopeCodec.encode(EnvelopeCodec.make("urn:babel:orders:created", {"order_id": 7}, queue="orders"))
    message = BQ.decode(Packet(body=body.encode()))
    assert message.type == "urn:babel:orders:created"
    assert message.key == message.id == json.loads(body)["meta"]["id"]
    assert BQ.encode(message).body == body.encode()


@pytest.mark.parametrize("blank", ["", " ", "\t", "\n", "\v", "\f", "\r", " \t\r\n"])
def test_a_blank_trace_id_is_read_and_sent_on_as_it_came(blank: str) -> None:
    envelope = EnvelopeCodec.make("urn:a", {"n": 1}) | {"trace_id": blank}
    body = EnvelopeCodec.encode(envelope).encode()
    message = BQ.decode(Packet(body=body))
    assert message.data == {"n": 1}
    packet = BQ.encode(message)
    assert packet.body == body
    assert bq_headers.TRACE not in packet.headers, "SQS refuses an empty attribute"
    assert all(packet.for_broker(broker) for broker in BINDINGS)


def test_a_job_and_a_trace_id_keep_the_blanks_around_them_when_they_are_sent_on() -> None:
    envelope = EnvelopeCodec.make("urn:a", {"n": 1}) | {"job": " urn:a\t", "trace_id": "\tt-1 "}
    message = BQ.decode(Packet(body=EnvelopeCodec.encode(envelope).encode()))
    assert BQ.encode(message).body == EnvelopeCodec.encode(envelope).encode()


def test_a_new_message_is_written_without_blanks_around_its_job_and_trace_id() -> None:
    document = json.loads(BQ.encode(eo.Message(type=" urn:a ", data={}, trace_id="\tt-1 ")).body)
    assert (document["job"], document["trace_id"]) == ("urn:a", "t-1")


def test_a_missing_version_is_read_as_the_first_and_an_unknown_one_is_refused() -> None:
    envelope = EnvelopeCodec.make("urn:a", {"n": 1})
    del envelope["meta"]["schema_version"]
    message = BQ.decode(Packet(body=json.dumps(envelope).encode()))
    assert (message.data, message.id) == ({"n": 1}, envelope["meta"]["id"])
    envelope["meta"]["schema_version"] = 2
    with pytest.raises(eo.Undecodable, match="schema_version is 2"):
        BQ.decode(Packet(body=json.dumps(envelope).encode()))


# -- our own


def test_what_a_message_has_and_the_envelope_has_not_comes_back() -> None:
    message = eo.Message(
        type="urn:shop:paid",
        data={"n": 1},
        key="Order:1",
        ordering_key="customer ☕",
        headers={
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            REDRIVEN_HEADER: BYPASS_PREFIX,
        },
    )
    packet = BQ.encode(message, "orders")
    assert packet.ordering_key == "customer ☕"
    assert packet.headers[babelqueue.HEADER_REPLAY_BYPASS] == "1"
    found = BQ.decode(packet)
    assert (found.key, found.ordering_key, found.id) == (message.key, message.ordering_key, message.id)
    assert found.headers[REDRIVEN_HEADER] == BYPASS_PREFIX
    assert found.headers["traceparent"] == message.headers["traceparent"]
    assert BQ.encode(found).body == packet.body


def test_headers_copied_to_another_message_do_not_make_it_the_first() -> None:
    first = BQ.decode(BQ.encode(eo.Message(type="urn:a", data={}), "orders"))
    second = eo.Message(type="urn:b", data={}, headers=dict(first.headers))
    document = json.loads(BQ.encode(second, "invoices").body)
    assert (document["meta"]["id"], document["meta"]["queue"], document["job"]) == (second.id, "invoices", "urn:b")


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (eo.Message(type=" \t", data={}), "URN"),
        (eo.Message(type="urn:a", data=[1]), "object"),
        (eo.Message(type="urn:a", data=None), "object"),
        (eo.Message(type="urn:a", data={"x": object()}), "JSON"),
        (eo.Message(type="urn:a", data={"x": "y" * 2_000_000}), "max_body"),
        (eo.Message(type="urn:a", data={}, headers={"bq-envelope": "not ours"}), "was not written by effectonce"),
    ],
)
def test_what_cannot_be_written_says_why(message: eo.Message[Any], hint: str) -> None:
    with pytest.raises(eo.ConfigurationError, match=hint):
        BQ.encode(message)


def test_the_time_of_creation_does_not_change_when_it_is_encoded_again() -> None:
    message = eo.Message(type="urn:a", data={})
    assert BQ.encode(message).body == BQ.encode(message).body
    created = json.loads(BQ.encode(message).body)["meta"]["created_at"]
    assert abs(created - int(message.id.replace("-", "")[:12], 16)) == 0


@pytest.mark.parametrize(
    ("time_of", "millis"),
    [
        (datetime(2024, 5, 1, 12, 0, 0, 7_999, tzinfo=UTC), 1_714_564_800_007),
        (datetime(2024, 5, 1, 14, 0, tzinfo=timezone(timedelta(hours=2))), 1_714_564_800_000),
        (datetime(1969, 12, 31, tzinfo=UTC), 0),
    ],
)
def test_the_time_of_a_message_is_its_creation_in_milliseconds(time_of: datetime, millis: int) -> None:
    message = eo.Message(type="urn:a", data={}, time=time_of)
    assert json.loads(BQ.encode(message).body)["meta"]["created_at"] == millis


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(eo.ConfigurationError, match="has no time zone"):
        BQ.encode(eo.Message(type="urn:a", data={}, time=datetime(2024, 5, 1)))


@pytest.mark.parametrize(
    "id", ["order-1", "8e03978e-40d5-43e8-bc93-6894a57f9324", "zzzzzzzz-zzzz-7zzz-zzzz-zzzzzzzzzzzz"]
)
def test_a_message_without_a_time_and_with_an_id_that_tells_none_is_created_now(id: str) -> None:
    before = time.time_ns() // 1_000_000
    created = json.loads(BQ.encode(eo.Message(type="urn:a", data={}, id=id, time=None)).body)["meta"]["created_at"]
    assert before <= created <= time.time_ns() // 1_000_000


def test_a_body_may_be_as_long_as_the_limit_and_not_longer() -> None:
    message = eo.Message(type="urn:a", data={"x": 1})
    packet = BQ.encode(message)
    exact, strict = BabelQueue(max_body=len(packet.body)), BabelQueue(max_body=len(packet.body) - 1)
    assert exact.decode(exact.encode(message)).data == {"x": 1}
    with pytest.raises(eo.ConfigurationError, match="over the limit"):
        strict.encode(message)
    with pytest.raises(eo.Undecodable, match="over the limit"):
        strict.decode(packet)

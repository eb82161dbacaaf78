"""F67: what was not signed with a known key is never decoded."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest
from msgspec.structs import replace

import effectonce as eo
from effectonce.babelqueue import BabelQueue
from effectonce.contracts import Packet
from effectonce.envelopes import CloudEvents, Raw, Signed
from effectonce.message import REDRIVEN_HEADER

OLD, NEW = b"0123456789abcdef-old", "0123456789abcdef-new"
ENVELOPES = pytest.mark.parametrize(
    "inner", [CloudEvents(), CloudEvents("binary"), BabelQueue(), Raw()], ids=["structured", "binary", "babel", "raw"]
)
MESSAGE = eo.Message(type="urn:shop:paid", data={"amount": 4200}, ordering_key="o", headers={"x": "y"})


class Untouched:
    """An envelope that must not be asked."""

    def encode(self, message: eo.Message[Any], queue: str = "") -> Packet:
        return CloudEvents().encode(message, queue)

    def decode(self, packet: Packet, data_type: Any = Any) -> eo.Message[Any]:
        pytest.fail("decoded before it was verified")


@ENVELOPES
def test_a_signed_message_is_read_as_it_is_without(inner: Any) -> None:
    signed = Signed(inner, keys={"k1": OLD})
    assert signed.decode(signed.encode(MESSAGE, "q")) == inner.decode(inner.encode(MESSAGE, "q"))


def forgeries(packet: Packet) -> dict[str, Packet]:
    headers = dict(packet.headers)
    unsigned = {name: value for name, value in headers.items() if not name.startswith("eo-signature")}
    return {
        "another body": replace(packet, body=packet.body.replace(b"4200", b"9999")),
        "one byte more": replace(packet, body=packet.body + b" "),
        "another id": replace(packet, id="forged"),
        "another ordering key": replace(packet, ordering_key="forged"),
        "a header changed": replace(packet, headers={**headers, "x": "z"}),
        "a header added": replace(packet, headers={**headers, "ce-id": "forged"}),
        "a header removed": replace(packet, headers={n: v for n, v in headers.items() if n != "content-type"}),
        "no signature": replace(packet, headers=unsigned),
        "half a signature": replace(packet, headers={**headers, "eo-signature": headers["eo-signature"][:32]}),
        "an empty signature": replace(packet, headers={**headers, "eo-signature": ""}),
        "a signature that is not ASCII": replace(packet, headers={**headers, "eo-signature": "é"}),
        "another key's name": replace(packet, headers={**headers, "eo-signature-key": "k2"}),
        "an unknown key": replace(packet, headers={**headers, "eo-signature-key": "k9"}),
    }


@pytest.mark.parametrize("what", forgeries(Signed(CloudEvents(), keys={"k1": OLD}).encode(MESSAGE)))
def test_a_forged_message_is_refused_before_it_is_decoded(what: str) -> None:
    signed = Signed(Untouched(), keys={"k1": OLD, "k2": NEW}, use="k1")
    with pytest.raises(eo.ForgedMessage):
        signed.decode(forgeries(signed.encode(MESSAGE))[what])


def test_a_forged_message_belongs_to_the_dead_letters() -> None:
    assert issubclass(eo.ForgedMessage, eo.Undecodable)


def test_what_is_written_on_the_way_does_not_break_the_signature() -> None:
    signed = Signed(CloudEvents(), keys={"k1": OLD})
    packet = signed.encode(MESSAGE)
    marked = replace(
        packet, headers={**packet.headers, REDRIVEN_HEADER: "1", "eo-dead-reason": "x", "traceparent": "00-a"}
    )
    assert signed.decode(marked).redriven


def test_keys_are_changed_without_losing_a_message() -> None:
    before = Signed(CloudEvents(), keys={"k1": OLD})
    between = Signed(CloudEvents(), keys={"k1": OLD, "k2": NEW}, use="k1")
    after = Signed(CloudEvents(), keys={"k1": OLD, "k2": NEW}, use="k2")
    done = Signed(CloudEvents(), keys={"k2": NEW})
    assert between.decode(before.encode(MESSAGE)) == after.decode(before.encode(MESSAGE))
    assert between.decode(after.encode(MESSAGE)) == done.decode(after.encode(MESSAGE))
    with pytest.raises(eo.ForgedMessage, match="k1"):
        done.decode(before.encode(MESSAGE))


def test_the_signature_is_the_one_that_the_documentation_describes() -> None:
    packet = Signed(Raw(), keys={"k1": OLD}).encode(eo.Message(data=b"body", id="id-1", headers={"b": "2", "a": "é"}))
    parts = ["effectonce-1", "k1", "id-1", "", "a", "é", "b", "2", "content-type", "application/octet-stream", "body"]
    text = b"".join(b"%d:%s" % (len(part.encode()), part.encode()) for part in parts)
    assert packet.headers["eo-signature"] == hmac.new(OLD, text, hashlib.sha256).hexdigest()
    assert packet.headers["eo-signature-key"] == "k1"


@pytest.mark.parametrize(
    ("keys", "use", "hint"),
    [
        ({"k": "short"}, None, "16 bytes"),
        ({"a": OLD, "b": NEW}, None, "a, b"),
        ({"a": OLD}, "b", "a"),
        ({}, None, "none"),
    ],
)
def test_keys_that_cannot_work_are_refused(keys: dict[str, str], use: str | None, hint: str) -> None:
    with pytest.raises(eo.InvalidOption, match=hint):
        Signed(CloudEvents(), keys=keys, use=use)


def test_a_key_is_never_printed() -> None:
    signed = Signed(CloudEvents(), keys={"k1": NEW})
    assert NEW not in f"{signed!r} {vars(signed)['_envelope']!r}"
    with pytest.raises(eo.ForgedMessage) as caught:
        signed.decode(CloudEvents().encode(MESSAGE))
    assert NEW not in str(caught.value)

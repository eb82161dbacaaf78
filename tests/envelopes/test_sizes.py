"""How large a body may be: as large as ``max_body``, and not one byte more, when it is written and when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import Envelope
from effectonce.envelopes import CloudEvents, Raw
from effectonce.envelopes.bodies import DEFAULT_MAX_BODY_BYTES

MESSAGE = eo.Message(type="order.paid", data={"order": 42}, id="m1", source="shop")

KINDS: dict[str, Callable[..., Envelope]] = {
    "structured": CloudEvents,
    "binary": lambda **options: CloudEvents("binary", **options),
    "raw": Raw,
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Callable[..., Envelope]:
    return KINDS[request.param]


def test_a_body_may_be_as_long_as_the_limit(make: Callable[..., Envelope]) -> None:
    packet = make().encode(MESSAGE)
    exact = make(max_body=len(packet.body))
    assert exact.encode(MESSAGE).body == packet.body
    assert exact.decode(packet).data == MESSAGE.data


def test_a_longer_body_is_neither_written_nor_read(make: Callable[..., Envelope]) -> None:
    packet = make().encode(MESSAGE)
    strict = make(max_body=len(packet.body) - 1)
    with pytest.raises(eo.ConfigurationError, match=f"a body of {len(packet.body)} bytes, over the limit"):
        strict.encode(MESSAGE)
    with pytest.raises(eo.Undecodable, match=f"the body has {len(packet.body)} bytes, over the limit"):
        strict.decode(packet)


def test_by_default_a_body_has_up_to_a_mebibyte(make: Callable[..., Envelope]) -> None:
    envelope: Any = make()
    assert envelope.max_body == DEFAULT_MAX_BODY_BYTES == 1024 * 1024

"""Standard Webhooks 1.0.0, against its reference library: verify, then deduplicate on ``webhook-id``."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

import effectonce as eo
from effectonce.integrations import webhooks

SECRET = "whsec_" + base64.b64encode(b"twenty-four bytes of key").decode()
OLD_SECRET = "whsec_" + base64.b64encode(b"the secret that is rolled").decode()
BODY = json.dumps({"type": "invoice.paid", "timestamp": "2026-11-03T20:26:10.344522Z", "data": {"id": "in_7"}}).encode()


def signed(body: bytes = BODY, secret: str = SECRET, id: str = "msg_1", age: float = 0.0) -> dict[str, str]:
    """The headers that the reference library's signature makes."""
    sent_at = int(datetime.now(UTC).timestamp() - age)
    signature = Webhook(secret).sign(id, datetime.fromtimestamp(sent_at, UTC), body.decode())
    return {"webhook-id": id, "webhook-timestamp": str(sent_at), "webhook-signature": signature}


def test_what_the_reference_library_has_signed_is_a_message_whose_key_is_the_webhook_id() -> None:
    message = webhooks.standard(SECRET)(BODY, signed())
    assert (message.id, message.key, message.type) == ("msg_1", "msg_1", "invoice.paid")
    assert message.data == json.loads(BODY)
    assert message.time == datetime(2026, 11, 3, 20, 26, 10, 344522, tzinfo=UTC)


def test_a_webhook_that_is_delivered_again_has_one_effect() -> None:
    charges: list[Any] = []
    with eo.connect("memory://") as store:

        @eo.once(store, scope="invoices")
        def handle(event: eo.Message[Any]) -> None:
            charges.append(event.data["data"]["id"])

        for age in (2, 1, 0):  # each delivery is signed anew
            handle(webhooks.standard(SECRET)(BODY, signed(age=age)))
    assert charges == ["in_7"]


@pytest.mark.parametrize(
    ("change", "body"),
    [
        pytest.param({}, BODY + b" ", id="another body"),
        pytest.param({"webhook-id": "msg_2"}, BODY, id="another id"),
        pytest.param({"webhook-timestamp": "1"}, BODY, id="another time"),
        pytest.param({"webhook-timestamp": "soon"}, BODY, id="no time"),
        pytest.param({"webhook-id": ""}, BODY, id="no id"),
        pytest.param({"webhook-signature": ""}, BODY, id="no signature"),
        pytest.param({"webhook-signature": "v1,AAAA"}, BODY, id="another signature"),
        pytest.param({"webhook-signature": "v1,"}, BODY, id="an empty signature"),
        pytest.param({"webhook-signature": "v1a,AAAA v2,AAAA"}, BODY, id="other versions only"),
    ],
)
def test_f67_both_refuse_what_is_not_signed(change: dict[str, str], body: bytes) -> None:
    headers = signed() | change
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, headers)
    with pytest.raises(eo.ForgedMessage):
        webhooks.standard(SECRET)(body, headers)


@pytest.mark.parametrize("age", [301, -301])
def test_both_refuse_a_signature_that_is_too_old_or_too_new(age: float) -> None:
    headers = signed(age=age + (1 if age > 0 else -1))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(BODY, headers)
    with pytest.raises(eo.ForgedMessage, match="too old"):
        webhooks.standard(SECRET)(BODY, headers)


def test_while_a_secret_is_rolled_either_one_will_do_on_either_side() -> None:
    both = webhooks.standard(SECRET, OLD_SECRET)
    assert both(BODY, signed(secret=OLD_SECRET)).id == both(BODY, signed()).id == "msg_1"
    headers = signed()
    headers["webhook-signature"] = (
        f"{signed(secret=OLD_SECRET)['webhook-signature']} v1a,x {headers['webhook-signature']}"
    )
    assert webhooks.standard(SECRET)(BODY, headers).id == "msg_1"


def test_a_secret_may_come_without_its_prefix_and_without_padding() -> None:
    bare = SECRET.removeprefix("whsec_").rstrip("=")
    assert webhooks.standard(bare)(BODY, signed(secret=bare)).id == "msg_1"


@pytest.mark.parametrize("secret", ["whpk_AAAA", "whsec_", "not base64!"])
def test_a_secret_that_is_not_one_is_refused_where_it_is_written(secret: str) -> None:
    with pytest.raises(eo.ConfigurationError, match="whsec_"):
        webhooks.standard(secret)


@pytest.mark.parametrize("payload", [{"data": 1}, ["a"], {"type": 7, "timestamp": "yesterday"}])
def test_a_payload_of_another_form_is_handled_all_the_same(payload: Any) -> None:
    body = json.dumps(payload).encode()
    headers = signed(body)
    message = webhooks.standard(SECRET)(body, headers)
    assert (message.data, message.type, message.id) == (payload, "", "msg_1")
    assert message.time == datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)


@pytest.mark.parametrize("body", [b"id=7", b"[" * 100_000 + b"]" * 100_000], ids=["a form", "nested too deeply"])
def test_a_signed_body_that_is_not_json_is_undecodable(body: bytes) -> None:
    with pytest.raises(eo.Undecodable):
        webhooks.standard(SECRET)(body, signed(body))

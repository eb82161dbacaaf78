"""What is known about each provider, and what its answers, and those of HTTP clients, are taken for."""

from __future__ import annotations

from typing import Any

import botocore.exceptions
import httpx
import pytest
import requests

from effectonce.providers import PROVIDERS, classify, find, is_ambiguous

HOUR = 3_600_000_000
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("name", "carrier", "field", "limit", "window"),
    [
        ("stripe", "header", "Idempotency-Key", 255, DAY),
        ("stripe-v2", "header", "Idempotency-Key", 255, 30 * DAY),
        ("paypal", "header", "PayPal-Request-Id", 108, None),
        ("square", "body", "idempotency_key", 45, None),
        ("adyen", "header", "idempotency-key", 64, 7 * DAY),
        ("aws", "body", "ClientToken", 64, None),
        ("dynamodb-transactions", "body", "ClientRequestToken", 36, 10 * 60_000_000),
        ("resend", "header", "Idempotency-Key", 256, DAY),
        ("ses", "none", "", 0, None),
        ("twilio", "none", "", 0, None),
    ],
)
def test_where_the_key_goes_and_how_long_it_is_kept(
    name: str, carrier: str, field: str, limit: int, window: int | None
) -> None:
    known = find(name)
    assert (known.carrier, known.field, known.limit, known.window) == (carrier, field, limit, window)
    assert not known.keyed or known.limit >= 36, "ours have 36 characters"


def test_every_provider_is_in_the_table_above() -> None:
    assert len(PROVIDERS) == 10


@pytest.mark.parametrize(
    ("operation", "window"),
    [
        ("orders", 6 * HOUR),
        ("vault", 3 * HOUR),
        ("subscriptions", 72 * HOUR),
        ("payouts", 30 * DAY),
        ("payments", 45 * DAY),
        ("disputes", None),
    ],
)
def test_paypal_keeps_its_keys_by_the_operation(operation: str, window: int | None) -> None:
    assert find("paypal").kept(operation) == window


def answered(status: int, body: Any = None, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body or {}, headers={name.replace("_", "-"): v for name, v in headers.items()})


def aws(code: str, status: int = 400, retries: int = 0) -> Exception:
    details: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": retries}}
    return botocore.exceptions.ClientError(details, "RunInstances")


@pytest.mark.parametrize(
    ("provider", "outcome", "verdict"),
    [
        # Rule 3: timeouts, resets and 5xx are unknown.
        ("stripe", answered(200, {"id": "ch_1"}), "success"),
        ("stripe", answered(500), "unknown"),
        ("stripe", answered(503), "unknown"),
        ("stripe", answered(302), "unknown"),
        ("stripe", httpx.ReadTimeout("no answer"), "unknown"),
        ("stripe", httpx.RemoteProtocolError("cut"), "unknown"),
        ("stripe", requests.exceptions.ReadTimeout(), "unknown"),
        ("stripe", ValueError("of the operation's own, after the call"), "unknown"),
        # What never left, and what is turned away before anything can happen.
        ("stripe", httpx.ConnectError("refused"), "not_executed"),
        ("stripe", requests.exceptions.ConnectTimeout(), "not_executed"),
        ("stripe", answered(429), "not_executed"),
        ("stripe", answered(401), "not_executed"),
        ("stripe", answered(402, {"error": {"code": "card_declined"}}), "failure"),
        ("stripe", answered(400, {"error": {"type": "invalid_request_error"}}), "failure"),
        # Another request under this key, and one that still runs.
        ("stripe", answered(400, {"error": {"type": "idempotency_error"}}), "unknown"),
        ("stripe", answered(409, {"error": {"code": "idempotency_key_in_use"}}), "unknown"),
        ("paypal", answered(422, {"details": [{"issue": "PAYPAL_REQUEST_ID_PREVIOUSLY_USED"}]}), "unknown"),
        ("paypal", answered(422, {"details": [{"issue": "PREVIOUS_REQUEST_IN_PROGRESS"}]}), "unknown"),
        ("paypal", answered(422, {"details": [{"issue": "INSTRUMENT_DECLINED"}]}), "failure"),
        ("square", answered(400, {"errors": [{"code": "IDEMPOTENCY_KEY_REUSED"}]}), "unknown"),
        ("square", answered(400, {"errors": [{"code": "CARD_DECLINED"}]}), "failure"),
        ("adyen", answered(422, {"errorCode": "704"}), "unknown"),
        ("adyen", answered(422, {"errorCode": "101"}, transient_error="true"), "unknown"),
        ("adyen", answered(422, {"errorCode": "101"}, transient_error="false"), "failure"),
        ("aws", aws("IdempotentParameterMismatch"), "unknown"),
        ("aws", aws("RequestLimitExceeded", 503), "not_executed"),
        ("aws", aws("RequestLimitExceeded", 503, retries=2), "unknown"),
        ("aws", aws("InternalError", 500), "unknown"),
        ("aws", aws("InvalidParameterValue"), "failure"),
        ("dynamodb-transactions", aws("TransactionInProgressException"), "unknown"),
        ("dynamodb-transactions", aws("IdempotentParameterMismatchException"), "unknown"),
        ("resend", answered(422), "failure"),
        ("ses", aws("Throttling"), "not_executed"),
        ("ses", aws("MessageRejected"), "failure"),
        ("twilio", answered(500), "unknown"),
        ("twilio", answered(429), "not_executed"),
    ],
)
def test_what_an_answer_is_taken_for(provider: str, outcome: Any, verdict: str) -> None:
    came = classify(find(provider), outcome)
    assert (came.kind, came.why) == (verdict, came.why)


@pytest.mark.parametrize(
    ("status", "verdict"), [(402, "failure"), (400, "failure"), (403, "unknown"), (404, "unknown")]
)
def test_rule_4_on_a_resend_only_what_comes_from_behind_the_keys_is_final(status: int, verdict: str) -> None:
    assert classify(find("stripe"), answered(status), resend=True).kind == verdict
    assert classify(find("stripe"), answered(status)).kind == "failure"


def test_when_to_come_again_is_what_the_provider_says() -> None:
    assert classify(find("stripe"), answered(429, retry_after="17")).retry_after == 17.0
    assert classify(find("stripe"), answered(429, retry_after="Fri, 31 Dec 1999 23:59:59 GMT")).retry_after == 60.0


@pytest.mark.parametrize(
    ("error", "ambiguous"),
    [
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (BrokenPipeError(), True),
        (httpx.ReadTimeout(""), True),
        (requests.exceptions.ReadTimeout(), True),
        (aws("InternalError", 500), True),
        (httpx.ConnectError(""), False),
        (ConnectionRefusedError(), False),
        (aws("InvalidParameterValue"), False),
        (ValueError(), False),
    ],
)
def test_which_errors_leave_open_whether_it_happened(error: Exception, ambiguous: bool) -> None:
    assert is_ambiguous(error) is ambiguous

"""What is known about each provider, and what its answers, and those of HTTP clients, are taken for."""

from __future__ import annotations

import asyncio
import errno
import http.client
import smtplib
import socket
import ssl
from datetime import timedelta
from enum import Enum
from typing import Any

import botocore.exceptions
import httpx
import pytest
import requests

import effectonce as eo
from effectonce.errors import NotExecuted, OutcomeUnknown
from effectonce.providers import PROVIDERS, Provider, classify, find_provider, is_ambiguous
from effectonce.providers.outcome_fields import find_status

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
    known = find_provider(name)
    assert (known.carrier, known.field, known.limit, known.window_of("any")) == (carrier, field, limit, window)
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
    assert find_provider("paypal").window_of(operation) == window


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
        ("stripe", httpx.ConnectTimeout("no route"), "not_executed"),
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
    came = classify(find_provider(provider), outcome)
    assert (came.kind, came.why) == (verdict, came.why)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((status, "failure") for status in (400, 402, 410, 422)),
        *((status, "unknown") for status in (403, 404, 405, 407, 411, 413, 414, 415, 431, 451)),
    ],
)
def test_rule_4_on_a_resend_only_what_comes_from_behind_the_keys_is_final(status: int, verdict: str) -> None:
    assert classify(find_provider("stripe"), answered(status), resend=True).kind == verdict
    assert classify(find_provider("stripe"), answered(status)).kind == "failure"


@pytest.mark.parametrize("status", [307, 308, 401, 407, 429])
def test_an_earlier_try_that_was_turned_away_leaves_the_last_answer_final(status: int) -> None:
    assert classify(find_provider("twilio"), answered_after(status, 422)).kind == "failure"


@pytest.mark.parametrize("status", [302, 303, 500, 503])
def test_an_earlier_try_that_may_have_been_executed_leaves_it_open(status: int) -> None:
    assert classify(find_provider("twilio"), answered_after(status, 422)).kind == "unknown"


def answered_after(first_status: int, status: int) -> httpx.Response:
    """The answer to a request that the client sent twice, with the first answer in its history."""
    request = httpx.Request("POST", "https://api.example/messages")
    return httpx.Response(status, request=request, history=[httpx.Response(first_status, request=request)])


def test_a_failure_says_what_the_error_says_and_not_what_an_answer_looks_like() -> None:
    assert classify(find_provider("aws"), aws("InvalidParameterValue")).why.startswith(
        "aws answered 400 InvalidParameterValue: An error occurred"
    )
    assert classify(find_provider("resend"), answered(422)).why == "resend answered 422"


def test_when_to_come_again_is_what_the_provider_says() -> None:
    assert classify(find_provider("stripe"), answered(429, retry_after="17")).retry_after == 17.0
    assert (
        classify(find_provider("stripe"), answered(429, retry_after="Fri, 31 Dec 1999 23:59:59 GMT")).retry_after == 0.0
    )
    assert (
        classify(find_provider("stripe"), answered(429, retry_after="Fri, 31 Dec 9999 23:59:59 GMT")).retry_after
        == 3600.0
    )
    assert classify(find_provider("stripe"), answered(429, retry_after="soon")).retry_after == 60.0


@pytest.mark.parametrize(
    ("error", "ambiguous"),
    [
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (BrokenPipeError(), True),
        (httpx.ReadTimeout(""), True),
        (requests.exceptions.ReadTimeout(), True),
        (aws("InternalError", 500), True),
        (http.client.IncompleteRead(b""), True),
        (http.client.BadStatusLine(""), True),
        (ssl.SSLError("bad record mac"), True),
        (asyncio.IncompleteReadError(b"", 1), True),
        (smtplib.SMTPServerDisconnected("closed"), True),
        (OSError(errno.EHOSTUNREACH, "no route to host"), True),
        (ExceptionGroup("of a task group", [ValueError(), httpx.ReadTimeout("")]), True),
        (httpx.ConnectError(""), False),
        (ConnectionRefusedError(), False),
        (socket.gaierror(), False),
        (ssl.SSLCertVerificationError("expired"), False),
        (http.client.InvalidURL("no port"), False),
        (smtplib.SMTPRecipientsRefused({}), False),
        (FileNotFoundError(errno.ENOENT, "no file"), False),
        (ExceptionGroup("of a task group", [ValueError()]), False),
        (aws("InvalidParameterValue"), False),
        (ValueError(), False),
        (EOFError(), False),
    ],
)
def test_which_errors_leave_open_whether_it_happened(error: Exception, ambiguous: bool) -> None:
    assert is_ambiguous(error) is ambiguous


def of(module: str, name: str = "ApiError", **attributes: Any) -> Exception:
    """An error as an SDK that is not installed here raises it."""
    kind = type(name, (Exception,), {"__module__": module})
    error: Exception = kind("no")
    error.__dict__.update(attributes)
    return error


class Code(Enum):
    UNAVAILABLE = 14
    DEADLINE_EXCEEDED = 4
    ABORTED = 10
    INTERNAL = 13
    UNKNOWN = 2
    CANCELLED = 1
    DATA_LOSS = 15
    RESOURCE_EXHAUSTED = 8
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    FAILED_PRECONDITION = 9
    UNAUTHENTICATED = 16
    UNIMPLEMENTED = 12


SAID_NO = {"INVALID_ARGUMENT", "FAILED_PRECONDITION"}
SAID_NO_FIRST = {"NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "UNIMPLEMENTED"}


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("module", ["grpc._channel", "grpc.aio._call"])
def test_what_grpc_says(code: Code, module: str) -> None:
    error = of(module, "RpcError", code=lambda: code)
    final = code.name in SAID_NO | SAID_NO_FIRST
    turned_away = code is Code.UNAUTHENTICATED
    assert is_ambiguous(error) is (not final and not turned_away)
    assert is_ambiguous(error, resend=True) is (code.name not in SAID_NO)
    verdict = classify(find_provider("twilio"), error)
    assert verdict.kind == ("failure" if final else "not_executed" if turned_away else "unknown")
    assert code.name in verdict.why


@pytest.mark.parametrize(
    ("names", "status"),
    [
        ("UNKNOWN INTERNAL DATA_LOSS", 500),
        ("UNAVAILABLE ABORTED RESOURCE_EXHAUSTED", 503),
        ("DEADLINE_EXCEEDED CANCELLED", 504),
        ("INVALID_ARGUMENT FAILED_PRECONDITION", 400),
        ("PERMISSION_DENIED ALREADY_EXISTS", 403),
        ("UNAUTHENTICATED", 401),
        ("NOT_FOUND", 404),
        ("UNIMPLEMENTED", 405),
    ],
)
def test_a_code_of_grpc_has_the_status_of_its_meaning_in_http(names: str, status: int) -> None:
    for name in names.split():
        assert find_status(of("grpc._channel", "RpcError", code=lambda: Code[name])) == status  # noqa: B023


@pytest.mark.parametrize("attribute", ["json_body", "body"])
@pytest.mark.parametrize(("code", "verdict"), [("idempotency_error", "unknown"), ("card_error", "failure")])
def test_the_codes_of_an_error_are_in_the_body_that_it_carries(attribute: str, code: str, verdict: str) -> None:
    error = of("stripe", http_status=400, **{attribute: {"error": {"type": code}}})
    assert classify(find_provider("stripe"), error).kind == verdict


@pytest.mark.parametrize(
    "error",
    [of("google.api_core.exceptions", grpc_status_code=Code.ABORTED, code=409), of("grpclib", status=Code.ABORTED)],
)
def test_grpc_through_others(error: Exception) -> None:
    assert is_ambiguous(error)


@pytest.mark.parametrize("attributes", [{"status": Code.CANCELLED}, {"code": Code.NOT_FOUND}, {"code": lambda: 503}])
def test_a_code_of_the_users_own_is_none_of_grpc(attributes: Any) -> None:
    error = of("shop.errors", "OrderError", **attributes)
    assert not is_ambiguous(error)
    assert classify(find_provider("twilio"), error).kind == "unknown"


@pytest.mark.parametrize(
    ("error", "ambiguous", "again"),
    [
        (of("twilio.base.exceptions", status=503, code=20503), True, True),
        (of("twilio.base.exceptions", status=400, code=21211), False, False),
        (of("twilio.base.exceptions", status=429, code=20429), False, True),
        (of("square.core.api_error", status_code=500), True, True),
        (of("square.core.api_error", status_code=402), False, False),
        (of("Adyen.exceptions", status_code=500), True, True),
        (of("Adyen.exceptions", status_code=422), False, False),
        (of("acme.sdk", status=502), True, True),
        (of("acme.sdk", http_status=408), True, True),
        (of("acme.sdk", code=504), True, True),
        (of("acme.sdk", response=httpx.Response(500)), True, True),
        (of("acme.sdk", response=httpx.Response(302)), True, True),
        (of("acme.sdk", status_code=200), True, True),
        (of("acme.sdk", "ReadTimeoutError"), True, True),
        (of("acme.sdk", status_code=400), False, False),
        (of("acme.sdk", status_code=404), False, True),
        (of("acme.sdk", status_code=409), False, True),
        (of("acme.sdk", status_code=429), False, True),
        (of("acme.sdk", status_code=402), False, False),
        (of("shop.errors", "OutOfStock", code=301), False, False),
        (of("shop.errors", "OutOfStock", status="sold out", code="E500"), False, False),
        (of("shop.errors", "OutOfStock", code=lambda which: which), False, False),
        # What a web framework raises is the step's own word, unless it passes a 5xx on.
        (of("fastapi.exceptions", "HTTPException", status_code=503), True, True),
        (of("fastapi.exceptions", "HTTPException", status_code=409), False, False),
        (of("werkzeug.exceptions", "BadGateway", code=502), True, True),
        (of("werkzeug.exceptions", "NotFound", code=404), False, False),
        (of("aiohttp.web_exceptions", "HTTPConflict", status=409), False, False),
    ],
)
def test_a_status_counts_whoever_says_it(error: Exception, ambiguous: bool, again: bool) -> None:
    assert (is_ambiguous(error), is_ambiguous(error, resend=True)) == (ambiguous, again)


@pytest.mark.parametrize(
    ("cause", "ambiguous"),
    [
        (httpx.ReadTimeout(""), True),
        (of("acme.sdk", status_code=500), True),
        (OutcomeUnknown("no answer", 0.0), True),
        (httpx.ConnectError("refused"), False),
        (of("stripe._error", http_status=409), False),
        (of("stripe._error", http_status=402), False),
        (KeyError("price"), False),
        (None, False),
    ],
)
def test_an_error_knows_no_more_than_the_one_it_was_raised_from(cause: Exception | None, ambiguous: bool) -> None:
    error = ValueError("the charge failed")
    error.__cause__ = cause
    assert is_ambiguous(error) is ambiguous


def test_what_was_raised_while_another_was_handled_is_not_its_consequence() -> None:
    """The saga may have been started by who handles a timeout of something else."""
    error = ValueError("no stock")
    error.__context__ = TimeoutError()
    assert not is_ambiguous(error)


def test_ours_mean_what_they_say() -> None:
    error = NotExecuted("429", 1.0)
    error.__cause__ = TimeoutError()
    assert not is_ambiguous(error)
    assert is_ambiguous(OutcomeUnknown("?", 1.0))


def test_a_status_of_anybodys_does_not_settle_an_intent() -> None:
    """The audit log said 404, after the charge."""
    assert classify(find_provider("stripe"), of("audit", code=404)).kind == "unknown"
    assert classify(find_provider("stripe"), of("audit", status=402)).kind == "unknown"
    assert classify(find_provider("twilio"), of("twilio.base.exceptions", status=400, code=21211)).kind == "failure"


def test_the_code_of_a_clients_error_may_be_its_status() -> None:
    assert classify(find_provider("stripe"), of("braintree.exceptions", code=422)).kind == "failure"
    assert classify(find_provider("stripe"), of("braintree.exceptions", code=503)).kind == "unknown"


def test_an_answer_that_could_not_be_used_is_an_answer_all_the_same() -> None:
    error = of("aiohttp.client_exceptions", "ContentTypeError", status=200, headers={})
    assert classify(find_provider("stripe"), error).kind == "unknown"
    assert is_ambiguous(error)


class Unreadable(Exception):
    @property
    def response(self) -> Any:
        raise RuntimeError("the response was not read")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Declined(Unspeakable):
    http_status = 402


@pytest.mark.parametrize("error", [Unreadable("boom"), Unspeakable()])
@pytest.mark.parametrize("resend", [False, True])
def test_an_error_that_cannot_be_read_is_unknown(error: Exception, resend: bool) -> None:
    assert classify(find_provider("stripe"), error, resend).kind == "unknown"


def test_an_error_that_cannot_be_read_leaves_it_open_in_a_step_too() -> None:
    assert is_ambiguous(Unreadable("boom"))
    assert not is_ambiguous(Unspeakable()), "it is the step's own"
    assert classify(find_provider("stripe"), Declined()).kind == "failure"


# -- a provider of one's own


def test_a_provider_of_ones_own_has_windows_as_durations() -> None:
    acmepay = Provider(
        "acmepay", field="X-Request-Key", window="24h", windows={"payout": timedelta(days=7), "quote": 90}
    )
    assert acmepay.window_of("charge") == 86_400_000_000
    assert acmepay.window_of("payout") == 7 * 86_400_000_000
    assert acmepay.window_of("quote") == 90_000_000
    assert Provider("acmepay").window_of("charge") is None
    assert find_provider(acmepay) is acmepay


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "a day"}, r"window='a day' is not a span of time; write it like"),
        ({"window": 0}, r"window=0 must be more than zero"),
        ({"windows": {"payout": "7 days"}}, r"the window of 'payout'='7 days' is not a span"),
        ({"carrier": "query"}, r"carrier='query' is none of 'header', 'body' and 'none'"),
        ({"name": ""}, r"a Provider has a name"),
    ],
)
def test_a_provider_that_cannot_be_is_refused_where_it_is_written(options: dict[str, Any], message: str) -> None:
    with pytest.raises(eo.InvalidOption, match=message):
        Provider(**{"name": "acmepay", **options})


def test_an_unknown_provider_is_told_how_to_describe_one() -> None:
    with pytest.raises(eo.ConfigurationError) as raised:
        eo.Intents(eo.connect("memory://"), scope="billing").operation("acmepay", "charge")
    assert "from effectonce.providers import Provider; Provider('acmepay', window='24h')" in str(raised.value)


def raised_in(module: str, function: str, error: Exception, **variables: Any) -> Exception:
    """``error`` with the traceback that it has where ``function`` of a client that is not installed here raises it."""
    namespace: dict[str, Any] = {"__name__": module, "error": error}
    exec(f"def {function}({', '.join(variables)}):\n    raise error", namespace)
    try:
        namespace[function](**variables)
    except Exception as raised:
        return raised
    raise AssertionError


@pytest.mark.parametrize(
    ("module", "function", "counter", "of_first_try"),
    [
        ("square.core.http_client", "request", "retries", 0),
        ("stripe._http_client", "_request_with_retries_internal", "num_retries", 0),
        ("stripe._http_client", "_request_with_retries_internal_async", "num_retries", 0),
        ("botocore.endpoint", "_send_request", "attempts", 1),
        ("aiobotocore.endpoint", "_send_request", "attempts", 1),
    ],
)
def test_a_refused_connection_of_a_client_that_counts_its_tries_never_left_at_the_first(
    module: str, function: str, counter: str, of_first_try: int
) -> None:
    def verdict(tries: Any) -> str:
        error = raised_in(module, function, httpx.ConnectError("refused"), **{counter: tries})
        return classify(find_provider("stripe"), error).kind

    assert verdict(of_first_try) == "not_executed"
    assert verdict(of_first_try + 1) == "unknown"


def test_a_client_that_retries_and_does_not_show_it_may_have_sent_it_before() -> None:
    shown = raised_in("square.core.http_client", "request", of("square.errors", "ConnectError"), retries=0)
    hidden = raised_in("square.core.http_client", "request", of("square.errors", "ConnectError"), retries=None)
    assert classify(find_provider("square"), shown).kind == "not_executed"
    assert classify(find_provider("square"), hidden).kind == "unknown"
    assert classify(find_provider("square"), of("square.errors", "ConnectError")).kind == "unknown"


@pytest.mark.parametrize(("allowed", "verdict"), [(0, "not_executed"), (2, "unknown"), (None, "unknown")])
@pytest.mark.parametrize("function", ["request", "request_async"])
def test_a_client_that_may_not_retry_has_not(function: str, allowed: int | None, verdict: str) -> None:
    error = of("stripe._error", "ConnectError")
    options = {"max_network_retries": allowed}
    raised = raised_in("stripe._api_requestor", function, error, options=options, requestor=None)
    assert classify(find_provider("stripe"), raised).kind == verdict

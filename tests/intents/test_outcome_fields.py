"""What is read off an outcome: its status, its codes, its headers, and the errors behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from effectonce.providers.outcome_fields import (
    error_chain,
    find_codes,
    find_grpc_code,
    find_header,
    find_loose_status,
    find_status,
    response_metadata,
)


def client_error(package: str = "requests", **attributes: Any) -> BaseException:
    """An error of a client's package."""
    error: BaseException = type("ClientError", (Exception,), {"__module__": f"{package}.exceptions"})("failed")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


# -- status


@pytest.mark.parametrize(("number", "is_status"), [(99, False), (100, True), (599, True), (600, False), ("200", False)])
def test_a_status_is_a_number_that_http_has(number: Any, is_status: bool) -> None:
    assert find_status(SimpleNamespace(status_code=number)) == (number if is_status else None)


@pytest.mark.parametrize("attribute", ["status_code", "http_status"])
def test_a_status_may_have_one_of_several_names(attribute: str) -> None:
    assert find_status(SimpleNamespace(**{attribute: 402})) == 402


def test_the_status_of_an_object_without_headers_may_mean_anything() -> None:
    assert find_status(SimpleNamespace(status=402)) is None
    assert find_status(SimpleNamespace(status=402, headers={})) == 402
    assert find_status(client_error(status=402)) == 402
    assert find_status(client_error("shop", status=402)) is None


def test_the_code_of_a_clients_error_may_be_its_status_and_that_of_others_not() -> None:
    assert find_status(client_error(code=503)) == 503
    assert find_status(client_error("shop", code=503)) is None


def test_a_response_of_botocore_has_its_status_in_its_metadata() -> None:
    response = {"ResponseMetadata": {"HTTPStatusCode": 429}}
    assert find_status(response) == 429
    assert response_metadata(response) == {"HTTPStatusCode": 429}
    for other in ({}, {"ResponseMetadata": None}, object()):
        assert response_metadata(other) == {}


def test_the_first_that_has_a_status_counts() -> None:
    sources = [
        object(),
        SimpleNamespace(status_code=None),
        SimpleNamespace(status_code=404),
        SimpleNamespace(status_code=500),
    ]
    assert find_status(*sources) == 404
    assert find_status() is None


@pytest.mark.parametrize(("number", "found"), [(399, None), (400, 400), (599, 599), (600, None), ("500", None)])
def test_a_number_that_may_be_the_status_of_an_error_is_one_of_an_error(number: Any, found: int | None) -> None:
    assert find_loose_status(client_error("shop", status=number)) == found
    assert find_loose_status(client_error("shop", code=number)) == found


# -- gRPC


def test_a_code_of_grpc_is_one_whichever_client_reports_it() -> None:
    unavailable = SimpleNamespace(name="UNAVAILABLE")
    assert find_grpc_code(client_error("grpc", code=lambda: unavailable)) == "UNAVAILABLE"
    assert find_grpc_code(client_error("grpclib", status=unavailable)) == "UNAVAILABLE"
    assert find_grpc_code(client_error("google.api_core", grpc_status_code=unavailable)) == "UNAVAILABLE"
    assert find_status(client_error("grpc", code=lambda: unavailable)) == 503


def test_what_only_looks_like_one_is_none() -> None:
    unavailable = SimpleNamespace(name="UNAVAILABLE")
    assert find_grpc_code(client_error("shop", code=lambda: unavailable)) is None
    assert find_grpc_code(client_error("shop", status=unavailable)) is None
    assert find_grpc_code(client_error("grpc", code=lambda: SimpleNamespace(name="SOLD_OUT"))) is None
    assert find_grpc_code(client_error("grpc", code=14)) is None
    assert find_grpc_code(SimpleNamespace(status=unavailable)) is None


# -- codes and headers


@pytest.mark.parametrize("attribute", ["code", "type", "error_code", "errorCode", "name"])
def test_a_providers_code_is_an_attribute_of_its_error(attribute: str) -> None:
    assert list(find_codes(client_error(**{attribute: "card_declined"}))) == ["card_declined"]


@pytest.mark.parametrize("field", ["code", "Code", "type", "errorCode", "name", "issue"])
@pytest.mark.parametrize(
    "place",
    [
        lambda code: code,
        lambda code: {"error": code},
        lambda code: {"Error": code},
        lambda code: {"errors": [{}, code]},
        lambda code: {"details": [code]},
    ],
    ids=["body", "error", "Error", "errors", "details"],
)
def test_a_providers_code_is_in_one_of_the_usual_places_of_a_body(place: Any, field: str) -> None:
    body = place({field: "card_declined"})
    for source in (
        body,
        SimpleNamespace(json_body=body),
        SimpleNamespace(body=body),
        SimpleNamespace(json=lambda: body),
    ):
        assert list(find_codes(source)) == ["card_declined"]


def test_of_a_long_list_of_errors_the_first_five_are_read() -> None:
    body = {"errors": [{"code": number} for number in range(9)]}
    assert list(find_codes(body)) == ["0", "1", "2", "3", "4"]


def test_what_cannot_be_a_code_or_a_body_is_left_out() -> None:
    def fail() -> Any:
        raise ValueError("not JSON")

    assert list(find_codes({"code": True, "type": None, "name": ["x"]}, SimpleNamespace(json=fail))) == []
    assert list(find_codes(SimpleNamespace(json="text", body="text"), {"errors": "text", "error": "text"})) == []


async def test_the_body_of_an_async_client_is_not_read() -> None:
    """A coroutine that is left alone would be warned of."""

    async def read() -> dict[str, str]:
        return {"code": "card_declined"}

    assert list(find_codes(SimpleNamespace(json=read))) == []


def test_a_header_is_found_whatever_its_case() -> None:
    sources = [object(), SimpleNamespace(headers=None), SimpleNamespace(headers={"RETRY-after": 7})]
    assert find_header("Retry-After", *sources) == "7"
    assert find_header("Location", *sources) is None


# -- the errors behind an error


def test_the_reasons_of_an_error_are_its_reason_its_cause_and_its_argument() -> None:
    innermost = OSError("refused")
    by_argument = ValueError(innermost)
    by_cause = RuntimeError("x")
    by_cause.__cause__ = by_argument
    by_reason = client_error(reason=by_cause)
    assert error_chain(by_reason) == [by_reason, by_cause, by_argument, innermost]


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    error = ValueError("x")
    error.__cause__ = error
    assert error_chain(error) == [error] * 8

"""What the SDK of AWS reports, as our errors, and the settings of its clients."""

from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions as sdk

from effectonce.backends.common.aws_sdk import SDK_ATTEMPTS, AWSTarget, parse_target, translate_error
from effectonce.contracts import ConnectionLost
from effectonce.errors import ConfigurationError, InvalidOption, StoreUnavailable
from effectonce.values.urls import Address

TARGET = AWSTarget(service="sqs", region="eu-west-1")


class Refused(ConfigurationError):
    """The service does not accept the request."""


def translated(error: Exception) -> Exception:
    return translate_error(error, TARGET, unavailable=StoreUnavailable, broken=ConnectionLost, refused=Refused)


def refusal(code: str, *, text: str = "", status: int = 400) -> Exception:
    reply: Any = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return sdk.ClientError(reply, "SendMessage")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (sdk.NoRegionError(), ConfigurationError, "names no region"),
        (sdk.ProfileNotFound(profile="x"), ConfigurationError, "profile"),
        (sdk.ConnectTimeoutError(endpoint_url="x"), StoreUnavailable, "does not answer"),
        (sdk.EndpointConnectionError(endpoint_url="x"), StoreUnavailable, "does not answer"),
        (sdk.ProxyConnectionError(proxy_url="x"), StoreUnavailable, "does not answer"),
        (sdk.ReadTimeoutError(endpoint_url="x"), StoreUnavailable, "does not answer"),
        (sdk.ConnectionClosedError(endpoint_url="x"), ConnectionLost, "broke"),
        (sdk.ResponseStreamingError(error="x"), ConnectionLost, "broke"),
        (sdk.NoCredentialsError(), ConfigurationError, "looks for credentials"),
        (refusal("Throttling"), StoreUnavailable, "throttled"),
        (refusal("AWS.SimpleQueueService.OverLimit"), StoreUnavailable, "throttled"),
        (refusal("RequestExpired"), ConfigurationError, "NTP"),
        (refusal("InvalidSignatureException", text="Signature expired: now"), ConfigurationError, "NTP"),
        (refusal("InvalidSignatureException", text="Signature not yet current"), ConfigurationError, "NTP"),
        (refusal("InvalidSignatureException"), ConfigurationError, "role and policy"),
        (refusal("AccessDenied", status=403), ConfigurationError, "role and policy"),
        (refusal("Odd", status=500), ConnectionLost, "failed"),
        (refusal("Odd", status=499), Refused, "refused the request"),
        (refusal("InternalFailure", status=400), ConnectionLost, "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_the_sdk_says_what_to_do(error: Exception, kind: type[Exception], said: str) -> None:
    ours = translated(error)
    assert type(ours) is kind
    assert said in str(ours)


def test_a_throttled_client_is_told_when_to_come_again() -> None:
    ours = translated(refusal("TooManyRequestsException"))
    assert isinstance(ours, StoreUnavailable)
    assert ours.retry_after == 1.0


def test_a_bug_of_ours_is_not_the_services_failure() -> None:
    bug = KeyError("x")
    assert translated(bug) is bug


def test_a_target_is_shown_as_its_url() -> None:
    assert str(TARGET) == "sqs://?region=eu-west-1"
    assert str(AWSTarget(service="dynamodb", table="t")) == "dynamodb://t"
    assert str(AWSTarget(service="dynamodb", table="t", profile="p", endpoint="http://h")) == (
        "dynamodb://t?endpoint=http://h&profile=p"
    )


def parse(url: str) -> AWSTarget:
    return parse_target(Address(url), timeout=7.0)


def test_a_url_says_where_the_service_is() -> None:
    assert parse("sqs://") == AWSTarget(service="sqs", timeout=7.0, connect_timeout=7.0)
    full = parse("sqs://?region=r&endpoint=https://h:8000&profile=p&timeout=2s")
    assert (full.region, full.endpoint, full.profile) == ("r", "https://h:8000", "p")
    assert (full.timeout, full.connect_timeout) == (2.0, 2.0)


@pytest.mark.parametrize("url", ["sqs://key@", "sqs://key:secret@", "sqs://:secret@"])
def test_credentials_in_a_url_are_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match="no credentials"):
        parse(url)


@pytest.mark.parametrize("endpoint", ["ftp://h", "http://", "http://u@h", "h:8000"])
def test_an_endpoint_is_the_url_of_a_host(endpoint: str) -> None:
    with pytest.raises(InvalidOption, match="endpoint"):
        parse(f"sqs://?endpoint={endpoint}")


class Session:
    """The SDK's session; it notes with what a client is made."""

    made: dict[str, Any]

    def __init__(self, profile: str | None) -> None:
        self.profile = profile

    def register_component(self, name: str, component: object) -> None:
        self.component = name

    def create_client(self, service: str, **options: Any) -> Session:
        self.made = {"service": service, **options}
        return self


def test_all_attempts_of_a_call_together_take_no_longer_than_the_timeout() -> None:
    target = AWSTarget(service="sqs", region="r", endpoint="http://h", profile="p", timeout=6.0, connect_timeout=4.0)
    session = target.create_client(Session, dict, connections=3, longest_wait=20)
    config = session.made.pop("config")
    assert session.made == {"service": "sqs", "region_name": "r", "endpoint_url": "http://h"}
    assert session.profile == "p"
    assert (config["connect_timeout"] * SDK_ATTEMPTS, (config["read_timeout"] - 20) * SDK_ATTEMPTS) == (4.0, 6.0)
    assert config["retries"]["total_max_attempts"] == SDK_ATTEMPTS
    assert config["max_pool_connections"] == 3
    assert config["tcp_keepalive"] is True

"""What the guard of Django reads of a request: its body within the limits, and left as it was for the view."""

from __future__ import annotations

from typing import Any

import django
import pytest
from django.apps import apps
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import override_settings

import effectonce as eo
from effectonce.errors import PayloadTooLarge
from effectonce.integrations.django import Idempotency
from effectonce.integrations.django.request_guard import hash_request, read_body, render_response

if not settings.configured:
    settings.configure()
if not apps.ready:
    django.setup()


def post(body: bytes = b"", path: str = "/charges", **extra: Any) -> HttpRequest:
    return RequestFactory().post(path, body, content_type="application/json", **extra)


def form(**fields: Any) -> HttpRequest:
    request = RequestFactory().post("/charges", fields)
    request.POST  # noqa: B018  # parsed before the guard, by a middleware
    return request


def test_a_body_of_the_limit_is_read_and_one_byte_more_is_refused() -> None:
    assert read_body(post(b"x" * 10), 10) == b"x" * 10
    with pytest.raises(PayloadTooLarge, match="max_body=10, by its Content-Length"):
        read_body(post(b"x" * 11), 10)


def test_a_body_that_is_longer_than_it_says_is_refused() -> None:
    """As a form is, which has been parsed before and has no length of its own any more."""
    request = form(note="x" * 100)
    request.META["CONTENT_LENGTH"] = "5"
    with pytest.raises(PayloadTooLarge, match=r"max_body=50\s"):
        read_body(request, 50)


def test_a_length_that_is_no_number_is_refused() -> None:
    request = post(b"{}")
    request.META["CONTENT_LENGTH"] = "2\n"
    with pytest.raises(PayloadTooLarge, match="is not a number"):
        read_body(request, 10)


def test_a_body_over_djangos_own_limit_is_refused_and_the_setting_is_named() -> None:
    with (
        override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=5),
        pytest.raises(PayloadTooLarge, match="DATA_UPLOAD_MAX_MEMORY_SIZE"),
    ):
        read_body(post(b"x" * 6), 100)


def test_a_form_that_was_parsed_stands_for_its_body_and_its_files_can_be_read_again() -> None:
    request = form(amount="7", slip=SimpleUploadedFile("slip.txt", b"paid"))
    body = read_body(request, 1000)
    assert b"amount" in body
    assert b"slip.txt" in body
    assert request.FILES["slip"].read() == b"paid"


@pytest.mark.parametrize("changed", ["amount", "name", "content"])
def test_two_forms_are_the_same_request_only_if_fields_and_files_are(changed: str) -> None:
    def hashed(amount: str = "7", name: str = "slip.txt", content: str = "paid") -> bytes:
        return hash_request(form(amount=amount, slip=SimpleUploadedFile(name, content.encode())), 1000).digest()

    assert hashed() == hashed()
    assert hashed() != hashed(**{changed: "other"})


@pytest.mark.parametrize("other", [post(b"{}", "/refunds"), post(b"[]"), post(b"{}", QUERY_STRING="a=1")])
def test_path_query_and_body_belong_to_a_request(other: HttpRequest) -> None:
    assert hash_request(post(b"{}"), 10).digest() == hash_request(post(b"{}"), 10).digest()
    assert hash_request(post(b"{}"), 10).digest() != hash_request(other, 10).digest()


def test_what_is_no_response_is_named() -> None:
    with pytest.raises(TypeError, match="returned str instead of a response"):
        render_response("ok")


def test_a_client_that_leaves_in_its_body_gets_400_and_nothing_is_claimed() -> None:
    class Leaving:
        def read(self, *size: int) -> bytes:
            raise OSError("gone")

        def close(self) -> None: ...

    with eo.connect("memory://") as store:
        view = Idempotency(store, service="shop", principal=eo.GLOBAL)(lambda request: HttpResponse("charged"))
        request = post(b"{}", HTTP_IDEMPOTENCY_KEY="k")
        request._stream = Leaving()  # type: ignore[attr-defined]
        assert view(request).status_code == 400
        assert store.list().records == []

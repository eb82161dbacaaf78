"""Schemathesis against the FastAPI example: whatever its schema lets a client send, and what it does not."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from effectonce.http.protocol import parse_key
from tests.harness.installed import ROOT

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
#: What a server answers that the operation's schema does not speak of: no caller in particular, and not this operation.
OUTSIDE = {401, 404, 405}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's module, on a store of its own; what the bank charged is in `charged`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EFFECTONCE_STORE", "memory://")
    monkeypatch.setenv("BANK_SECONDS", "0")
    spec = importlib.util.spec_from_file_location("fuzzed_shop", ROOT / "examples" / "http" / "fastapi_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "fuzzed_shop", module)
    spec.loader.exec_module(module)
    module.charged = []

    async def bank(user: str, payment: Any) -> None:
        module.charged.append((user, payment.order, payment.amount))

    monkeypatch.setattr(module, "bank", bank)
    yield module
    module.store.close()


@pytest.mark.quick_on("negative")
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_whatever_is_sent_is_never_a_500_never_twice_and_never_anothers(shop: Any, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", shop.app)
    operation = schema["/charges"]["POST"]
    told: Counter[int] = Counter()
    ran: Counter[tuple[str, str]] = Counter()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(
        case=operation.as_strategy(generation_mode=mode),
        token=st.sampled_from(["a-token", "b-token", "no-token"]),
        key=st.sampled_from([None, "k1", '"k1"', "k2"]),
    )
    def fuzz(case: Any, token: str, key: str | None) -> None:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {token}"}
        if key is not None:  # else the one that was made up
            case.headers["Idempotency-Key"] = key
        before = len(shop.charged)
        response = case.call()
        told[response.status_code] += 1
        if response.status_code not in OUTSIDE:
            case.validate_response(response, checks=CHECKS)
        if len(shop.charged) > before:
            user = {"a-token": "alice", "b-token": "bob"}[token]
            sent = str(response.request.headers["Idempotency-Key"])
            assert [each[0] for each in shop.charged[before:]] == [user]
            ran[user, parse_key([sent.encode("latin-1")])] += 1
        elif response.status_code == 201:
            assert response.headers["idempotent-replayed"] == ["true"]

    fuzz()
    assert set(ran.values()) <= {1}, "a double run"
    assert told[500] == 0
    assert told[201 if mode is GenerationMode.POSITIVE else 400] > 0, told

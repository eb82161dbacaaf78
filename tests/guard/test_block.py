"""`block`: the guard for a piece of code."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo


def test_a_block_runs_first_and_replays_after_that(store: eo.Store) -> None:
    for first in (True, False):
        with eo.block(store, scope="mailer", key="email:42") as b:
            assert b.first is first
            if b.first:
                assert eo.current().key == "email:42"
                b.result = {"sent": True}
        assert b.result == {"sent": True}


async def test_an_async_block_does_the_same(store: eo.Store) -> None:
    for first in (True, False):
        async with eo.block(store, scope="mailer", key=("email", 42), returns=bytes) as b:
            assert b.first is first
            if b.first:
                b.result = b"\x00"
        assert b.result == b"\x00"


def test_a_block_that_raises_is_free_again(store: eo.Store) -> None:
    with pytest.raises(ValueError), eo.block(store, scope="mailer", key="k"):
        raise ValueError
    with eo.block(store, scope="mailer", key="k") as b:
        assert b.first
        assert b.run.attempt == 2


def test_a_block_compares_its_payload(store: eo.Store) -> None:
    with eo.block(store, scope="mailer", key="k", payload={"to": "ada"}) as block:
        assert block.first
    with pytest.raises(eo.PayloadMismatch), eo.block(store, scope="mailer", key="k", payload={"to": "bob"}):
        raise AssertionError("must not run")


def test_a_blocks_result_is_set_by_its_first_run_only(store: eo.Store) -> None:
    with eo.block(store, scope="mailer", key="k") as block:
        assert block.first
    with eo.block(store, scope="mailer", key="k") as b:
        assert not b.first
        with pytest.raises(eo.ConfigurationError, match="first"):
            b.result = 1


def test_a_result_that_was_not_stored_is_told_when_it_is_asked_for(store: eo.Store) -> None:
    with eo.block(store, scope="mailer", key="k") as b:
        assert b.first
        b.result = object()
    with eo.block(store, scope="mailer", key="k") as b:
        assert not b.first
        with pytest.raises(eo.ResultNotStored):
            _ = b.result


def test_a_block_is_entered_once(store: eo.Store) -> None:
    b = eo.block(store, scope="mailer", key="k")
    with pytest.raises(eo.ConfigurationError, match="not been entered"):
        _ = b.run
    with b:
        assert b.first
    with pytest.raises(eo.ConfigurationError, match="once"), b:
        pass


@pytest.mark.parametrize(("options", "state"), [({}, "free"), ({"on_error": "doubt"}, "in_doubt")])
def test_a_block_whose_first_was_never_looked_at_raises_and_is_not_recorded_as_done(
    store: eo.Store, options: dict[str, Any], state: str
) -> None:
    with (
        pytest.raises(eo.ConfigurationError, match=r"`first` was never tested.*write `if b\.first:`"),
        eo.block(store, scope="mailer", key="k", **options) as b,
    ):
        b.result = "sent"
    assert store.get("mailer", "k").state == state  # type: ignore[union-attr]


def test_a_block_of_a_duplicate_is_looked_at_too(store: eo.Store) -> None:
    """Its body ran for the duplicate, though nothing said that it may."""
    with eo.block(store, scope="mailer", key="k") as b:
        assert b.first
    with pytest.raises(eo.ConfigurationError, match="never tested"), eo.block(store, scope="mailer", key="k"):
        pass
    assert store.get("mailer", "k").state == "done"  # type: ignore[union-attr]


async def test_an_async_block_is_looked_at_too(store: eo.Store) -> None:
    with pytest.raises(eo.ConfigurationError, match="never tested"):
        async with eo.block(store, scope="mailer", key="k"):
            pass
    assert store.get("mailer", "k").state == "free"  # type: ignore[union-attr]


def test_the_error_of_a_body_that_did_not_look_is_its_own(store: eo.Store) -> None:
    with pytest.raises(ValueError), eo.block(store, scope="mailer", key="k"):
        raise ValueError


def test_a_block_needs_a_key_and_a_scope(store: eo.Store) -> None:
    with pytest.raises(eo.MissingKey):
        eo.block(store, scope="mailer", key="")
    with pytest.raises(eo.ConfigurationError):
        eo.block(store, scope="", key="k")

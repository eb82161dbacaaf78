"""Private stores: what one release has written, every later one finds and opens."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import effectonce as eo
from effectonce.core.claim_notes import read_listed_note
from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import prepare_run
from effectonce.core.guarded_call.run import Policy, StoreRun
from effectonce.core.privacy import Privacy
from effectonce.record import Record
from effectonce.values.fingerprint import fingerprint

SECRET = "0123456789abcdef"  # the shortest that is allowed
HIDDEN_KEY = "c02e706cdf0146575c21335b09bfef22c2348d1c3354f6356b1dc3a5dcca306f"
RESULT = bytes.fromhex(  # of the first generation
    "50b03f6050056cfe1413d75d1e9a7e6062dfaa2974c298bf02fdbad4cf43acee75e75e4dd4f3358ccfcb4a"
)
RESULT_OF_MODE_S = bytes.fromhex("504fee63ac42b13c80ca2571446222e4ef4ec34db1c5662ee951af809ac79330df16")
NOTE = bytes.fromhex("50120806452e5d4e27f4702c7e5b2b544a57f49eba39db757e9d3c6a0676f42a9aef319bf16dc9")


@pytest.fixture
def privacy() -> Privacy:
    return Privacy(SECRET)


@pytest.fixture
def run() -> StoreRun:
    store = eo.connect("memory://", private=SECRET, sweep_every=None)
    policy = Policy(scope="billing", codec=Codec(Any, 1000), retention_us=1_000_000)
    return prepare_run(store.runtime, policy, "order:1", b"")


def test_a_key_has_the_same_hash_in_every_release(run: StoreRun) -> None:
    assert run.stored_key == HIDDEN_KEY


def test_a_key_has_another_hash_in_another_scope_and_under_another_secret(privacy: Privacy) -> None:
    hashes = {
        privacy.hide("billing", "order:1"),
        privacy.hide("billin", "gorder:1"),
        Privacy(SECRET + "!").hide("billing", "order:1"),
    }
    assert len(hashes) == 3


def test_fingerprints_are_hashed_each_behind_its_version(privacy: Privacy) -> None:
    hidden = privacy.hide_fingerprints("billing", fingerprint({"a": 1}) + fingerprint({"a": 2}))
    assert hidden.hex() == (
        "015c97cb8a3a8f607bbdec9559aaa8f55476442fc56f4eea895728aaceb762e136"
        "0120555e4ea628acf6d3e8358dfa8f1776e630a3535ba07182184691dbfe37e4ab"
    )


def test_a_result_opens_under_its_own_generation_only(run: StoreRun) -> None:
    assert run.unseal(RESULT, 1) == b'1{"paid":true}'
    with pytest.raises(eo.CorruptRecord, match="does not open"):
        run.unseal(RESULT, 2)


def test_a_result_of_mode_s_opens_under_any_generation(run: StoreRun) -> None:
    assert run.unseal(RESULT_OF_MODE_S, 1) == run.unseal(RESULT_OF_MODE_S, 7) == b"1null"


def test_a_note_opens_whatever_the_generation_of_its_record(privacy: Privacy) -> None:
    record = Record(
        scope="billing", key=HIDDEN_KEY, state="free", token=1, attempts=1, generation=7, doubt_on_lapse=False,
        created_at=0, changed_at=0, note=NOTE,
    )  # fmt: skip
    assert read_listed_note(record, privacy) == b'{"step":2}'
    assert read_listed_note(replace(record, note=None), privacy) is None


@pytest.mark.parametrize("damaged", [b"", b"P", RESULT[:-1], b"Q" + RESULT[1:], RESULT[:20] + b"x" + RESULT[21:]])
def test_what_was_damaged_does_not_open(run: StoreRun, damaged: bytes) -> None:
    with pytest.raises(eo.CorruptRecord, match="does not open"):
        run.unseal(damaged, 1)


def test_a_secret_has_sixteen_bytes_at_least() -> None:
    with pytest.raises(eo.InvalidOption, match="at least 16 bytes"):
        Privacy(SECRET[1:])
    with pytest.raises(eo.InvalidOption, match="str or bytes"):
        Privacy(1234567890123456)  # type: ignore[arg-type]

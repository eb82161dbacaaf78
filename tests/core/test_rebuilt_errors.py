"""A duplicate of what failed for good gets the error of the first call: Stripe's own, and those of the program."""

from __future__ import annotations

import enum
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stripe
from requests.structures import CaseInsensitiveDict

import effectonce as eo
from effectonce.core.codec import decode_error, encode_error
from effectonce.core.rebuilt_errors import rebuild

BODY: dict[str, Any] = {
    "error": {
        "type": "card_error",
        "code": "card_declined",
        "decline_code": "insufficient_funds",
        "message": "Your card has insufficient funds.",
        "charge": "ch_1",
    }
}


def declined(body: dict[str, Any] = BODY) -> stripe.CardError:
    """A decline as Stripe's client raises it."""
    return stripe.CardError(
        "Your card has insufficient funds.",
        param="",
        code="card_declined",
        http_body=str(body),
        http_status=402,
        json_body=body,
        headers=CaseInsensitiveDict({"Request-Id": "req_1"}),  # type: ignore[arg-type]
    )


def again(error: BaseException, *permanent: type[BaseException]) -> BaseException | None:
    """``error`` as a duplicate gets it: from what its record keeps."""
    stored = decode_error(encode_error(error))
    return rebuild(stored.type, stored.message, permanent or (Exception,), stored.args, stored.named)


def test_a_decline_is_stripes_own_error_again() -> None:
    error = again(declined(), stripe.StripeError)
    assert type(error) is stripe.CardError
    assert str(error) == str(declined()) == "Request req_1: Your card has insufficient funds."
    assert (error.code, error.http_status, error.user_message) == ("card_declined", 402, declined().user_message)
    assert error.error is not None
    assert error.error.decline_code == "insufficient_funds"


def test_a_decline_with_a_huge_body_comes_back_without_it() -> None:
    error = again(declined(BODY | {"padding": "x" * 20_000}))
    assert type(error) is stripe.CardError
    assert (error.code, error.http_status, error.json_body) == ("card_declined", 402, None)


def test_a_guard_replays_a_decline_as_stripes_own_error() -> None:
    charges = []
    with eo.connect("memory://") as store:

        @eo.once(store, scope="charges", key="payment", permanent=(stripe.CardError,))
        def charge(payment: str) -> None:
            charges.append(payment)
            raise declined()

        for _ in range(2):
            with pytest.raises(stripe.CardError) as caught:
                charge("pay_1")
            assert caught.value.code == "card_declined"
    assert charges == ["pay_1"]


def test_an_intent_replays_a_decline_as_stripes_own_error(tmp_path: Path) -> None:
    sends = []
    with eo.connect(f"sqlite:///{tmp_path}/shop.db") as store:
        intents = eo.Intents(store, scope="billing")

        @intents.operation("stripe", "charge")
        def charge(intent: eo.Intent[int]) -> None:
            sends.append(intent.request)
            raise declined()

        for _ in range(2):
            with pytest.raises(stripe.CardError) as caught:
                charge(4200, key="pay_1")
            assert caught.value.code == "card_declined"
    assert sends == [4200]


class OutOfStock(Exception):
    """Takes something else than it passes on."""

    def __init__(self, item: str, left: int = 0) -> None:
        super().__init__(f"{item}: {left} left")
        self.item, self._left = item, left


class Bin(enum.Enum):
    A7 = 1


class WrongBin(Exception):
    def __init__(self, bin: Bin) -> None:
        super().__init__(f"not {bin.name}")
        self.bin, self.code = bin, "E17"


class Changing(Exception):
    """Its text is another each time that it is made."""

    made = 0

    def __init__(self, item: str) -> None:
        Changing.made += 1
        self.item = item
        super().__init__(f"{item} {Changing.made}")


def test_an_error_of_the_program_is_made_again_of_what_it_keeps() -> None:
    error = again(OutOfStock("socks", 3))
    assert isinstance(error, OutOfStock)
    assert (error.item, error._left, str(error)) == ("socks", 3, "socks: 3 left")


def test_an_error_of_a_builtin_class_is_made_of_its_args() -> None:
    error = again(KeyError("sku", 7))
    assert type(error) is KeyError
    assert error.args == ("sku", 7)


@pytest.mark.parametrize("error", [WrongBin(Bin.A7), Changing("x")])
def test_what_cannot_be_made_again_is_not(error: Exception) -> None:
    assert again(error) is None


def test_what_cannot_be_made_again_is_named_with_its_code() -> None:
    with eo.connect("memory://") as store:

        @eo.once(store, scope="picks", key="job", permanent=(WrongBin,))
        def pick(job: str) -> None:
            raise WrongBin(Bin.A7)

        with pytest.raises(WrongBin):
            pick("j1")
        with pytest.raises(eo.PermanentFailure, match=r"test_rebuilt_errors:WrongBin not A7"):
            pick("j1")


def test_an_error_that_the_guard_does_not_name_is_not_made_again() -> None:
    assert again(OutOfStock("socks"), ValueError) is None


def test_f60_a_record_imports_nothing() -> None:
    """A row that somebody edited names a class of a module that this program has not imported."""
    code = (
        "import sys; from effectonce.core.rebuilt_errors import rebuild; "
        "assert rebuild('xml.sax:SAXException', 'x', (Exception,), ['x'], None) is None; "
        "assert rebuild('os:system', 'x', (Exception,), ['true'], None) is None; "
        "assert 'xml.sax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

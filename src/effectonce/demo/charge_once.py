"""`effectonce demo`: one payment, delivered twice byte for byte, charged once.

Runs on the standard library and msgspec. It counts the charges that really happened, and exits with 1 if there
was not exactly one.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from msgspec import Struct, json, structs

from effectonce.display.redaction import redact
from effectonce.display.suggestions import did_you_mean
from effectonce.display.terminal import Screen
from effectonce.guard.once import once
from effectonce.message import Message
from effectonce.store import connect

from .shop import Ledger, Payment, Receipt, decode_message, encode_message, make_message, sqlite_url

DELIVERY_COUNT = 2


class DemoReport(Struct, kw_only=True):
    """The counts of the demo, as ``--json`` prints them."""

    payment_id: str
    message_id: str
    deliveries: int = 0
    charges: int = 0
    replayed: int = 0
    receipts: list[Receipt] = []

    @property
    def is_promise_kept(self) -> bool:
        """Whether the promise was kept: every delivery got the same receipt, and only one of them charged."""
        same = all(receipt == self.receipts[0] for receipt in self.receipts)
        return (self.deliveries, self.charges, self.replayed) == (DELIVERY_COUNT, 1, DELIVERY_COUNT - 1) and same


def main(arguments: Sequence[str]) -> int:
    """Run the demo that ``arguments`` select. Returns 0 if every promise was kept, else 1."""
    options = command_line().parse_args(arguments)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    with tempfile.TemporaryDirectory(prefix="effectonce-demo-", ignore_cleanup_errors=True) as folder:
        if options.crash:
            from .crash import main as crash

            return crash(Path(folder), as_json=options.json)
        return charge_once(Path(folder), as_json=options.json)


def command_line() -> argparse.ArgumentParser:
    parser = _RedactingParser(
        prog="effectonce demo",
        description="Deliver one payment twice, and charge it once. Runs on SQLite in a temporary folder.",
    )
    parser.add_argument(
        "--crash", action="store_true", help="kill workers before and after the charge, and compare all modes"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser


class _RedactingParser(argparse.ArgumentParser):
    """Reports errors as argparse does, with what was meant, but never prints the password of a URL."""

    def error(self, message: str) -> NoReturn:
        unknown = message.split() if message.startswith("unrecognized") else ()
        mistyped = [word for word in unknown if word.startswith("--")]
        meant = "".join(did_you_mean(word, self._option_string_actions) for word in mistyped)
        super().error(redact(message, message.split()) + (f".{meant}" if meant else ""))


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    """End the demo on SIGTERM as on Ctrl-C: by an exception, so that files and processes are cleaned up."""
    sys.exit(128 + number)


def charge_once(folder: Path, *, as_json: bool = False) -> int:
    """Deliver the payment twice, in this process."""
    screen = Screen()
    message = make_message()
    report = DemoReport(payment_id=message.data.payment_id, message_id=message.id)
    ledger = Ledger(folder / "ledger.db")
    body = encode_message(message)
    queue: deque[bytes] = deque()
    for number in range(1, DELIVERY_COUNT + 1):
        queue.append(body)
        if not as_json:
            size = f"{'same ' if number > 1 else ''}{len(body)} bytes"
            screen.print_tagged("publish", f"delivery {number}  id={message.id}  {size}", "dim")

    with connect(sqlite_url(folder / "store.db")) as store:

        @once(store, scope="demo:charge")
        def charge(message: Message[Payment]) -> Receipt:
            payment = message.data
            if not as_json:
                money = f"{payment.amount / 100:.2f} {payment.currency}"
                screen.print_tagged("charge", f"payment_id={payment.payment_id}  {money}  id={message.id}", "yellow")
            return ledger.charge(payment)

        while queue:
            outcome = charge.call(decode_message(queue.popleft()))
            report.deliveries += 1
            report.replayed += outcome.replayed
            report.receipts.append(outcome.value)
    report.charges = ledger.count()
    _print_report(report, screen, as_json)
    return 0 if report.is_promise_kept else 1


def _print_report(report: DemoReport, screen: Screen, as_json: bool) -> None:
    if as_json:
        print(json.encode({"ok": report.is_promise_kept, **structs.asdict(report)}).decode())
        return
    fired = f"side-effect fired {report.charges} time(s)."
    screen.print_tagged(
        "result", f"{report.deliveries} deliveries of the SAME payment {report.payment_id}: {fired}", "bold"
    )
    if report.is_promise_kept:
        number = report.receipts[0].number
        screen.print_tagged("ok", f"delivered at least once, charged exactly once: both got receipt {number}.", "green")
    else:
        screen.print_tagged("FAILED", f"one charge was promised, {report.charges} happened.", "red")

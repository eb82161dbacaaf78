"""The command line in a real terminal: colour, prompts, progress and Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import effectonce as eo
from effectonce.message import CAUSE_HEADER
from effectonce.telemetry.audit_log import AuditLog
from effectonce.worker.dead_letter_cause import Cause

CTRL_C = b"\x03"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """A command at a terminal of 110 columns; what it shows, and who types."""

    def __init__(self, *arguments: str, folder: Path, environment: dict[str, str]) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            try:
                os.chdir(folder)
                os.execve(sys.executable, [sys.executable, "-m", "effectonce", *arguments], environment)
            finally:
                os._exit(127)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
        self.shown = ""
        self._code: int | None = None

    def until(self, text: str) -> None:
        """Wait for ``text`` to be shown."""
        deadline = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), f"it ended without {text!r}: {self.shown}"

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def end(self) -> int:
        """Its exit code, when it has ended by itself."""
        deadline = time.monotonic() + 60
        while self._read():
            assert time.monotonic() < deadline, self.shown
        return self.close()

    def close(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            os.close(self._fd)
        return self._code

    def kill(self) -> None:
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)
            self.close()

    def _read(self, timeout: float = 1.0) -> bool:
        """False: the terminal is closed."""
        if select.select([self._fd], [], [], timeout)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return False
            self.shown += data.decode(errors="replace")
            return bool(data)
        return True


Open = Callable[..., Terminal]


@pytest.fixture
def at_terminal(tmp_path: Path, environment: dict[str, str]) -> Iterator[Open]:
    terminals: list[Terminal] = []

    def at_terminal(*arguments: str, **extra: str) -> Terminal:
        terminals.append(Terminal(*arguments, folder=tmp_path, environment={**environment, **extra}))
        return terminals[-1]

    yield at_terminal
    for terminal in terminals:
        terminal.kill()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[eo.Store]:
    """One record that is done."""
    with eo.connect(f"sqlite:///{tmp_path}/shop.db?synchronous=normal", sweep_every=None) as store:
        with eo.block(store, scope="charge", key="pay_1") as block:
            assert block.first
            block.result = 1
        yield store


@pytest.fixture
def expired(store: eo.Store) -> int:
    """More than one batch of expired records."""
    for number in range(600):
        with eo.block(store, scope="old", key=str(number), retention="1ms") as block:
            assert block.first
    return 600


HERE = ("--store", "sqlite:///shop.db")


def test_any_answer_but_yes_declines(store: eo.Store, at_terminal: Open, tmp_path: Path) -> None:
    command = ("records", "forget", "charge", "pay_1", *HERE, "--audit", "audit.jsonl")
    for answer, code, state in ((b"\n", 1, "done"), (b"n\n", 1, "done"), (b"y\n", 0, "free")):
        terminal = at_terminal(*command)
        terminal.until("[y/N]")
        terminal.type(answer)
        assert terminal.end() == code
        assert ("nothing was done" in terminal.shown) == bool(code)
        record = store.get("charge", "pay_1")
        assert record is not None
        assert record.state == state
    assert len(AuditLog(tmp_path / "audit.jsonl").recent()) == 2, "a declined action is not logged"


def test_ctrl_c_at_a_prompt_does_nothing(store: eo.Store, at_terminal: Open) -> None:
    terminal = at_terminal("records", "forget", "charge", "pay_1", *HERE)
    terminal.until("[y/N]")
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    assert store.get("charge", "pay_1").state == "done"  # type: ignore[union-attr]


def test_purge_shows_its_progress_and_wipes_it(expired: int, at_terminal: Open) -> None:
    terminal = at_terminal("records", "purge", *HERE, "--yes")
    assert terminal.end() == 0
    plain = COLOUR.sub("", terminal.shown)
    assert re.search(r"purging +\S+ +600/600  [\d,.]+/s  0 s left", plain), "done, rate, time left"
    assert plain.rpartition("\x1b[2K")[2] == "600 deleted, 0 moved to in doubt\r\n"
    assert COLOUR.search(terminal.shown)


def test_no_color_disables_colour(store: eo.Store, at_terminal: Open) -> None:
    for command in (["records", "list", *HERE], ["doctor", *HERE], ["records", "purge", *HERE, "--yes"]):
        terminal = at_terminal(*command, NO_COLOR="1")
        terminal.end()
        assert not COLOUR.search(terminal.shown), command


def test_a_table_has_boxes_and_colours_states(store: eo.Store, at_terminal: Open) -> None:
    terminal = at_terminal("records", "list", *HERE)
    assert terminal.end() == 0
    assert "┌─" in terminal.shown
    assert "\x1b[32mdone" in terminal.shown


SHOP = """\
import effectonce as eo
broker = eo.connect_broker("sqlite:///queue.db")
worker = eo.Worker(broker, store=eo.connect("sqlite:///shop.db"), name="billing")
@worker.handler("orders")
def charge(message): ...
"""


@pytest.fixture
def dead_letters(tmp_path: Path) -> Iterator[eo.DeadLetterQueue]:
    """Six dead letters of a worker in shop.py."""
    import msgspec

    (tmp_path / "shop.py").write_text(SHOP)
    with eo.connect_broker(f"sqlite:///{tmp_path}/queue.db") as broker:
        broker.declare("orders", group="billing")
        broker.publish("orders", [eo.Message(type="order.paid", data=number) for number in range(6)])

        async def bury() -> None:
            consumer = broker.backend.consumer("orders", group="billing", prefetch=6)
            cause = msgspec.json.encode(Cause(why="poison", given_up_at=time.time())).decode()
            for delivery in await consumer.receive(6, 5.0):
                await consumer.dead_letter(delivery, {CAUSE_HEADER: cause})
            await consumer.close()

        broker.run_blocking(bury)
        yield eo.DeadLetterQueue(broker, "orders", group="billing")


def test_ctrl_c_ends_a_redrive_after_the_current_message(
    dead_letters: eo.DeadLetterQueue, at_terminal: Open, tmp_path: Path
) -> None:
    """What was sent is gone from the dead letters, what was not is still there: nothing is in between."""
    terminal = at_terminal("dlq", "redrive", "shop:worker", "orders", "--rate", "2", "--yes", "--audit", "audit.jsonl")
    terminal.until("1/6")
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    assert "stopping after this step" in terminal.shown
    assert "Traceback" not in terminal.shown
    sent = int(re.findall(r"(\d) of \d checked were sent", terminal.shown)[0])
    assert 1 <= sent < 6
    assert dead_letters.count() == 6 - sent
    assert AuditLog(tmp_path / "audit.jsonl").recent()[0].outcome == "failed: KeyboardInterrupt"


def test_a_redrive_asks_and_shows_its_progress(dead_letters: eo.DeadLetterQueue, at_terminal: Open) -> None:
    terminal = at_terminal("dlq", "redrive", "shop:worker", "orders")
    terminal.until("Send up to 6 dead letters to orders again?")
    terminal.until("[y/N]")
    terminal.type(b"y\n")
    assert terminal.end() == 0
    assert "redriving" in terminal.shown
    assert "6 of 6 checked were sent" in terminal.shown
    assert dead_letters.count() == 0

"""The worker of `effectonce demo --crash`: a process of its own, made to be killed.

It says ``ready``, and then deliveries come in through a pipe; each is answered with one word: ``ack``, ``again
SECONDS`` (deliver it later), ``park`` (in doubt: keep the bytes for an operator) or ``broken WHY``. Told to halt at a
point, or at ``any``, it stops once when it gets there, says so, and goes on with the next word. The end of the pipe is
the end of the worker, so that none outlives its parent.
"""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from effectonce.errors import InDoubt, Retryable

from .crash_modes import MODES, Desk, Handler, Point
from .shop import decoded


class Halt:
    """Stops the worker at one point of its work, once."""

    def __init__(self, point: str, broker: Connection) -> None:
        self._point = point
        self._broker = broker

    def __call__(self, reached: Point) -> None:
        if self._point not in (reached, "any"):
            return
        self._point = ""
        self._broker.send_bytes(reached.encode())
        try:
            self._broker.recv_bytes()
        except EOFError:
            os._exit(1)  # the parent is gone; nothing is tidied up here, as nothing would be in a crash


def handled(handler: Handler, body: bytes) -> str:
    """What the broker is to do with the delivery. Only a handler that returns is acknowledged."""
    try:
        handler(decoded(body))
    except Retryable as error:
        return f"again {error.retry_after:.3f}"
    except InDoubt:
        return "park"
    except Exception as error:
        return f"broken {type(error).__name__}: {error}"
    return "ack"


def main(broker: Connection, name: str, folder: Path, lease: str, halt: str) -> None:
    """Work until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends the workers
    mode = next(mode for mode in MODES if mode.name == name)
    handler = mode.handler(Desk(folder, lease, Halt(halt, broker)))
    try:
        broker.send_bytes(b"ready")
        while True:
            broker.send_bytes(handled(handler, broker.recv_bytes()).encode())
    except (EOFError, BrokenPipeError):
        return

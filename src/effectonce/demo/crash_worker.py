"""The worker of `effectonce demo --crash`: a process of its own, made to be killed.

It sends ``ready``, then receives deliveries through a pipe and answers each with one word: ``ack``, ``again SECONDS``
(deliver it later), ``park`` (in doubt: keep the bytes for an operator) or ``broken WHY``. If it is to halt at a
point, or at ``any``, it stops there once, sends the point's name, and continues after the next message. It ends when
the pipe is closed, so that it never outlives its parent.
"""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from effectonce.errors import InDoubt, LeaseLost, Retryable

from .crash_modes import MODES, DemoHandler, ModeEnvironment, StopPoint
from .shop import decode_message


class Halt:
    """Stops the worker at one point of its work, once."""

    def __init__(self, point: str, broker: Connection) -> None:
        self._point = point
        self._broker = broker

    def __call__(self, reached: StopPoint) -> None:
        if self._point not in (reached, "any"):
            return
        self._point = ""
        self._broker.send_bytes(reached.encode())
        try:
            self._broker.recv_bytes()
        except EOFError:
            os._exit(1)  # the parent has ended; clean up nothing, as in a crash


def handle_delivery(handler: DemoHandler, body: bytes) -> str:
    """Run the handler, and return what the broker must do. A delivery is acked only if its handler returns."""
    try:
        handler(decode_message(body))
    except Retryable as error:
        return f"again {error.retry_after:.3f}"
    except LeaseLost:  # on a busy machine, before it charged: as any error of a handler, it is delivered again
        return "again 0"
    except InDoubt:
        return "park"
    except Exception as error:
        return f"broken {type(error).__name__}: {error}"
    return "ack"


def main(broker: Connection, mode_name: str, folder: Path, lease: str, halt_at: str) -> None:
    """Work until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which then ends the workers
    mode = next(mode for mode in MODES if mode.name == mode_name)
    handler = mode.handler(ModeEnvironment(folder, lease, Halt(halt_at, broker)))
    try:
        broker.send_bytes(b"ready")
        while True:
            broker.send_bytes(handle_delivery(handler, broker.recv_bytes()).encode())
    except (EOFError, BrokenPipeError):
        return

"""Opening TCP connections to a Redis: the quickest address of a host wins, and the system looks after idle ones."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any, Final

#: After so long without an answer of one address, the next is tried beside it (RFC 8305, happy eyeballs).
HAPPY_EYEBALLS_DELAY_S: Final = 0.25
#: An idle connection is probed by the system after so long, and then in these intervals: firewalls and NAT gateways
#: forget connections that are idle for minutes.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 30, 10, 3

_Address = tuple[Any, ...]  # as `socket.getaddrinfo` returns it


def tune(sock: Any) -> None:
    """Send small packets at once (TCP_NODELAY), and keep an idle connection alive, or notice that it is dead."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """Connect to ``host``. Where it has several addresses, the first that answers wins: a host whose IPv6 leads nowhere
    costs a quarter of a second, not the timeout. (`asyncio` does the same.) Raises `OSError`."""
    addresses = _interleave_families(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    if len(addresses) == 1:
        return socket.create_connection((host, port), timeout)
    sock = _Race(addresses, timeout).run()
    sock.settimeout(timeout)
    return sock


def _interleave_families(addresses: Sequence[_Address]) -> list[_Address]:
    first = [address for address in addresses if address[0] == addresses[0][0]]
    others = [address for address in addresses if address[0] != addresses[0][0]]
    return [address for address in chain.from_iterable(zip_longest(first, others)) if address is not None]


class _Race:
    """Connections to the addresses of one host, started one after another until one is established."""

    def __init__(self, addresses: Sequence[_Address], timeout: float) -> None:
        self._left = list(addresses)
        self._deadline = time.monotonic() + timeout
        self._next_at = 0.0  # when the next address is tried
        self._error: OSError = TimeoutError("timed out")

    def run(self) -> socket.socket:
        with selectors.DefaultSelector() as selector:
            try:
                while self._left or selector.get_map():
                    now = time.monotonic()
                    if now >= self._deadline:
                        raise TimeoutError("timed out")
                    if self._left and now >= self._next_at:
                        self._start(selector)
                    wake_at = min(self._next_at, self._deadline) if self._left else self._deadline
                    for key, _ in selector.select(max(wake_at - time.monotonic(), 0.0)):
                        sock: Any = key.fileobj
                        selector.unregister(sock)
                        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                        if code == 0:
                            return sock  # type: ignore[no-any-return]
                        sock.close()
                        self._give_up(OSError(code, os.strerror(code)))
                raise self._error
            finally:
                for key in list(selector.get_map().values()):
                    key.fileobj.close()  # type: ignore[union-attr]

    def _start(self, selector: selectors.BaseSelector) -> None:
        family, kind, protocol, _, place = self._left.pop(0)
        self._next_at = time.monotonic() + HAPPY_EYEBALLS_DELAY_S
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # this system lacks the family
            self._give_up(error)
            return
        sock.setblocking(False)
        try:
            with suppress(BlockingIOError):
                sock.connect(place)
            selector.register(sock, selectors.EVENT_WRITE)
        except OSError as error:
            sock.close()
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """One address failed: the next is tried at once."""
        self._error, self._next_at = error, 0.0

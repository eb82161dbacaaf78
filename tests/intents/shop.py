"""Processes that charge an order each and die at a step: `python -m tests.intents.shop URL PROVIDER STEP…`.

Their steps are the store's operations, before and after each, and the call to the provider, before and after; at step 0
none dies. How each has ended is printed, as JSON. Everything is imported once, and the processes are forked from that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import httpx
import psycopg  # noqa: F401  (before the fork)

import effectonce as eo
import effectonce.public  # `effectonce` imports nothing until it is asked for a name
from effectonce.store import Store, open_backend

STEPS = 8


class Mortal:
    """A backend whose process is killed at one of its steps."""

    def __init__(self, backend: Any, step: int) -> None:
        self._backend = backend
        self._left = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def __repr__(self) -> str:
        return repr(self._backend)

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def sync_port(self) -> Any:
        return _Port(self, self._backend.sync_port())


class _Port:
    def __init__(self, backend: Mortal, port: Any) -> None:
        self._backend = backend
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def run(self, batch: Any) -> Any:
        self._backend.step()
        replies = await self._port.run(batch)
        self._backend.step()
        return replies


def shop(url: str, provider: str, step: int = 0) -> tuple[eo.Intents, Any]:
    backend = Mortal(open_backend(url), step)
    http = httpx.Client(base_url=provider, timeout=60, verify=False)  # no certificates to load
    intents = eo.Intents(Store(backend, sweep_every=None), scope="shop")

    @intents.operation("stripe", "charge", lease="3s", returns=dict[str, Any])
    def charge(intent: eo.Intent[dict[str, Any]]) -> Any:
        backend.step()
        response = http.post("/charges", headers=intent.headers, json=intent.request)
        backend.step()
        response.raise_for_status()
        return response.json()

    return intents, charge


def life(url: str, provider: str, step: int) -> int:
    """The process that charges ``order-STEP``."""
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            _, charge = shop(url, provider, step)
            charge({"order": f"order-{step}", "amount": 4200}, key=f"order-{step}")
            ended = 0
        finally:
            os._exit(ended)
    return child


if __name__ == "__main__":
    _, url, provider, *steps = sys.argv
    lives = [life(url, provider, int(step)) for step in steps]
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in lives]))

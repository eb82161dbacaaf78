"""The application in deploy/, and what its worker is set to."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import pytest

from effectonce.values.durations import micros

from .files import DEPLOY, parse


class Shop(NamedTuple):
    drain_s: float
    prefetch: int
    concurrency: int

    @classmethod
    def load(cls, monkeypatch: pytest.MonkeyPatch) -> Shop:
        monkeypatch.setenv("EFFECTONCE_BROKER", "memory://")
        spec = importlib.util.spec_from_file_location("deploy_shop", DEPLOY / "shop.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        worker = module.worker
        return cls(worker._drain_s, worker._prefetch, sum(route.concurrency for route in worker.routes))

    def seconds_to_stop(self, words: list[str]) -> float:
        """How long a command may take to end after SIGTERM: a worker drains, a relay waits for confirms."""
        if words[0] == "run":
            return self.drain_s
        return micros(parse(words)["lease"], "lease") / 1e6 if words[0] == "relay" else 0.0

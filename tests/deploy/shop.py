"""The application in deploy/, and what its worker is set to."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from effectonce.values.durations import micros

from .files import DEPLOY, parse


class Shop(NamedTuple):
    drain_s: float
    prefetch: int
    concurrency: int

    @classmethod
    def read(cls) -> Shop:
        """Read the settings off the source, so that they stand there as a reader of the file sees them."""
        settings: dict[str, Any] = {
            keyword.arg: keyword.value.value
            for node in ast.walk(ast.parse((DEPLOY / "shop.py").read_text()))
            if isinstance(node, ast.Call)
            for keyword in node.keywords
            if keyword.arg in cls._fields or keyword.arg == "drain"
            if isinstance(keyword.value, ast.Constant)
        }
        return cls(micros(settings["drain"], "drain") / 1e6, settings["prefetch"], settings["concurrency"])

    def seconds_to_stop(self, words: list[str]) -> float:
        """How long a command may take to end after SIGTERM: a worker drains, a relay waits for confirms."""
        if words[0] == "run":
            return self.drain_s
        return micros(parse(words)["lease"], "lease") / 1e6 if words[0] == "relay" else 0.0

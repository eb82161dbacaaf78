"""What a tracer is told: each run of a handler, each duplicate, and how deliveries were settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import effectonce as eo
from effectonce.contracts import Delivery
from effectonce.core.retry import Retry

from .bench import Bench, paid, serving, until


class Tracer:
    def __init__(self) -> None:
        self.runs: list[tuple[str, str]] = []
        self.duplicates: list[tuple[str, str]] = []
        self.settlements: list[tuple[str, str, str]] = []

    def trace_handler(self, queue: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def traced(message: eo.Message[Any]) -> Any:
            self.runs.append((queue, message.id))
            return await function(message)

        return traced

    def trace_duplicate(self, queue: str, message: eo.Message[Any], run: Any) -> None:
        self.duplicates.append((queue, message.id))

    def trace_settlement(self, queue: str, how: str, deliveries: Sequence[Delivery], seconds: float) -> None:
        assert 0.0 <= seconds < 60.0
        self.settlements += [(queue, delivery.packet.id, how) for delivery in deliveries]


async def test_a_tracer_sees_each_run_each_duplicate_and_how_they_were_settled() -> None:
    bench = Bench()
    worker = bench.worker()
    worker.tracer = tracer = Tracer()

    @worker.handler("orders", retry=Retry(2, first="1ms"))
    async def charge(message: eo.Message[Any]) -> None:
        if message.data["order"] == 13:
            raise ValueError("unlucky")

    good, bad = paid(1), paid(13)
    async with serving(worker):
        await bench.send("orders", good)
        await until(lambda: bench.count("ack") == 1)
        await bench.send("orders", good)
        await until(lambda: bench.count("ack") == 2)
        await bench.send("orders", bad)
        await until(lambda: bench.count("dead") == 1)
    assert tracer.runs == [("orders", good.id), ("orders", bad.id), ("orders", bad.id)]
    assert tracer.duplicates == [("orders", good.id)]
    assert tracer.settlements == [
        ("orders", good.id, "acked"),
        ("orders", good.id, "acked"),
        ("orders", bad.id, "redelivered"),
        ("orders", bad.id, "dead"),
    ]

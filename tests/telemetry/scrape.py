"""Reading what is exposed: over HTTP, and as numbers."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

import effectonce as eo
from effectonce.telemetry.prometheus import Metrics


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def aget(address: str, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(get, address, path)


class Page:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels; -1 where there are none."""
        values = [
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(values) if values else -1


def private() -> Metrics:
    """Metrics in a registry of their own."""
    return Metrics(CollectorRegistry())


def page(metrics: Any) -> Page:
    return Page(metrics.text().decode())


def exposed() -> dict[str, tuple[str, set[str]]]:
    """Every metric of ours by name: its type, and the labels that it is given."""
    store = eo.connect("memory://", sweep_every=None)
    metrics: Metrics = private().watch(store)
    for kind in ("claimed", "completed", "published"):  # a counter has labels once it has counted something
        store.runtime.emit(kind, "s", seconds=1.0)
    return {
        family.name: (family.type, _labels(family))
        for family in metrics.registry.collect()
        if family.name.startswith("effectonce_")
    }


def _labels(family: Metric) -> set[str]:
    return {*getattr(family, "_labelnames", ()), *(name for sample in family.samples for name in sample.labels)} - {
        "le"
    }

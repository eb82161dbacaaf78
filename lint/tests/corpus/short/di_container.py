# ruff: noqa
# expect file: P11
from dataclasses import dataclass, field
from typing import Protocol

import requests
from taskiq import InMemoryBroker, TaskiqDepends

broker = InMemoryBroker()


class Carrier(Protocol):
    def book(self, order: dict) -> str: ...


@dataclass
class HttpCarrier:
    session: requests.Session = field(default_factory=requests.Session)

    def book(self, order: dict) -> str:
        return self.session.post("https://carrier.example/parcels", json=order).json()["id"]


def carrier() -> Carrier:
    return HttpCarrier()


@broker.task
async def packed(order: dict, by: Carrier = TaskiqDepends(carrier)) -> None:
    by.book(order)

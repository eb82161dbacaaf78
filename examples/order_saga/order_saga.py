"""Reserve, charge, ship, and back again where one fails: python order_saga.py [STORE_URL]"""

import os
import sys

import msgspec

import effectonce as eo

URL = sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else os.environ.get("EFFECTONCE_STORE", "memory://")
store = eo.connect(URL)


class Order(msgspec.Struct):
    id: str
    amount: int
    card: str = "visa"
    country: str = "NL"


class Receipt(msgspec.Struct):
    charge: str
    amount: int


done_outside: dict[str, tuple[str, str]] = {}  # what the outside did, by key: the same key again does nothing more


def outside(what: str, order: Order) -> str:
    key = eo.current().key
    if key not in done_outside:
        done_outside[key] = (what, order.id)
        print(f"  [{what}] {order.id}")
    return f"{what}:{order.id}"


saga = eo.Saga("order-fulfilment", store, input=Order)


@saga.step()
def reserve(order: Order) -> str:
    return outside("reserve", order)


@reserve.compensate
def release(order: Order) -> None:
    outside("release", order)


@saga.step(retry=eo.Retry(3, first="10ms"), timeout="10s")
def charge(order: Order) -> Receipt:
    if order.card == "expired":
        raise ValueError("the card has expired")
    return Receipt(outside("charge", order), order.amount)


@charge.compensate
def refund(order: Order, done: eo.Done) -> None:
    assert done[charge].amount == order.amount
    outside("refund", order)


@saga.step()
def ship(order: Order) -> str:
    if order.country == "Atlantis":
        raise LookupError("no carrier goes there")
    return outside("ship", order)


ORDERS = [
    Order("o-good", 4200),
    Order("o-declined", 1900, card="expired"),
    Order("o-far-away", 700, country="Atlantis"),
]


def main() -> int:
    for order in ORDERS * 2:  # the queue delivers at least once; today, twice
        print(f"[order] {order.id}")
        try:
            print(f"[done]  {saga.run(order.id, order)[charge]}")
        except eo.SagaFailed as failed:
            print(f"[undone] {failed}")
    count = {what: sum(did == what for did, _ in done_outside.values()) for what in ("charge", "refund", "ship")}
    summary = f"{count['charge']} charges, {count['refund']} refund, {count['ship']} shipped"
    print(f"[result] {len(ORDERS) * 2} deliveries: {summary}")
    return count != {"charge": 2, "refund": 1, "ship": 1}


if __name__ == "__main__":
    with store:
        sys.exit(main())

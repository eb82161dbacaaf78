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


calls: dict[str, tuple[str, str]] = {}  # what outside systems did, by key: they ignore a key that they have seen


def call(name: str, order: Order) -> str:
    key = eo.current().key
    if key not in calls:
        calls[key] = (name, order.id)
        print(f"  [{name}] {order.id}")
    return f"{name}:{order.id}"


saga = eo.Saga("order-fulfilment", store, input=Order)


@saga.step()
def reserve(order: Order) -> str:
    return call("reserve", order)


@reserve.compensate
def release(order: Order) -> None:
    call("release", order)


@saga.step(retry=eo.Retry(3, first="10ms"), timeout="10s")
def charge(order: Order) -> str:
    if order.card == "expired":
        raise ValueError("the card has expired")
    return call("charge", order)


@charge.compensate
def refund(order: Order, done: eo.Done) -> None:
    assert done[charge] == f"charge:{order.id}"  # what the step returned
    call("refund", order)


@saga.step()
def ship(order: Order) -> str:
    if order.country == "Atlantis":
        raise LookupError("no carrier goes there")
    return call("ship", order)


def main() -> None:
    orders = [Order("o-good", 42), Order("o-declined", 19, card="expired"), Order("o-far-away", 7, country="Atlantis")]
    for order in orders * 2:  # the queue delivers at least once; today, twice
        print(f"[order] {order.id}")
        try:
            print(f"[done]  {saga.run(order.id, order)[ship]}")
        except eo.SagaFailed as failed:
            print(f"[undone] {failed}")
    count = {name: sum(called == name for called, _ in calls.values()) for name in ("charge", "refund", "ship")}
    print(f"[result] 6 deliveries: {count['charge']} charges, {count['refund']} refund, {count['ship']} shipped")


if __name__ == "__main__":
    with store:
        main()

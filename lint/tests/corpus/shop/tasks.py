# ruff: noqa
"""Tasks that reach their effects, and their guards, through other files."""

from .dedup import AlreadyDone, Seen, claim, deduplicated, first_delivery, logged, must_be_first, r, settled
from .gateway import Gateway, even
from .worker import celery as queue

gateway = Gateway(currency="usd")
seen = Seen(r)


def settle(order):
    total = sum(line["price"] for line in order["lines"])
    return gateway.charge(total)


@queue.task
def pay(order):  # expect: P11, EO303
    settle(order)


@queue.task
@logged
def pay_logged(order):  # expect: P11, EO303
    """A decorator that guards nothing."""
    settle(order)


@queue.task
@deduplicated("message_id")
def pay_deduplicated(*, message_id, order):  # expect: clean
    settle(order)


@queue.task
def pay_claimed(message_id, order):  # expect: clean
    if not claim(message_id):
        return
    gateway.charge(order["total"], key=message_id)


@queue.task
def pay_in_context(message_id, order):  # expect: clean
    try:
        with first_delivery(message_id) as cur:
            cur.execute("INSERT INTO payments (order_id, total) VALUES (%s, %s)", (order["id"], order["total"]))
    except AlreadyDone:
        pass


@queue.task
def pay_first_only(message_id, order):  # expect: clean
    try:
        must_be_first(message_id)
    except AlreadyDone:
        return
    settle(order)
    settled(message_id)


@queue.task
def pay_seen(message_id, order):  # expect: EO101, EO103, EO303
    if seen.has(message_id):
        return
    settle(order)
    seen.add(message_id)


@queue.task
def look_up(charge_id):  # expect: clean
    return gateway.look_up(charge_id).amount if even(4) else None


HANDLERS = {
    "paid": pay,
    "charged": settle,
}


@queue.task
def dispatch(event):  # expect: P11, EO303
    """By a table of handlers."""
    handler = HANDLERS[event["type"]]
    handler(event["order"])

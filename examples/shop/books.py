"""What the customers have been told, what the shop knows and what the provider has booked, side by side."""

import sqlite3
from contextlib import closing
from typing import NamedTuple

import provider
from orders import PIECES, Basket, OrderRow, Shipment, Stock, transaction
from sqlalchemy import func, select


class Line(NamedTuple):
    what: str
    expected: int
    found: int


def unfinished() -> int:
    """How many orders are neither shipped nor cancelled."""
    with transaction() as session:
        open_ones = select(func.count()).select_from(OrderRow).where(OrderRow.state.in_(("placed", "paid")))
        return session.execute(open_ones).scalar_one()


def compare(bought: dict[str, Basket]) -> list[Line]:
    """``bought``: the orders that customers know, by number."""
    with closing(sqlite3.connect(provider.LEDGER)) as db:
        booked = db.execute("SELECT kind, order_id, amount, kind || '_' || number FROM ledger").fetchall()
    with transaction() as session:
        orders = session.execute(select(OrderRow.id, OrderRow.amount, OrderRow.state, OrderRow.charge, OrderRow.refund))
        rows = [(row.id, row.amount, row.state, row.charge, row.refund) for row in orders]
        shipped = list(session.scalars(select(Shipment.order_id)))
        left = session.get_one(Stock, "chair").pieces
    charges = [(order, amount, id) for kind, order, amount, id in booked if kind == "charge"]
    refunds = [(order, amount, id) for kind, order, amount, id in booked if kind == "refund"]
    good, far, declined = set[str](), set[str](), set[str]()
    for id, basket in bought.items():
        (declined if basket.card == "declined" else far if basket.country == "Atlantis" else good).add(id)
    paid = {(id, amount, charge) for id, amount, _, charge, _ in rows if charge is not None}
    repaid = {(id, amount, refund) for id, amount, _, _, refund in rows if refund is not None}
    cancelled = {id for id, _, state, _, _ in rows if state == "cancelled"}
    return [
        Line("orders placed", len(bought), len(rows)),
        Line("... that a customer knows of", len(bought), len({id for id, *_ in rows} & bought.keys())),
        Line("orders paid", len(good | far), len(paid)),
        Line("charges in the provider's ledger", len(good | far), len(charges)),
        Line("... that an order knows of", len(good | far), len(paid & set(charges))),
        Line("orders refunded", len(far), len({id for id, *_ in repaid} & far)),
        Line("refunds in the provider's ledger", len(far), len(refunds)),
        Line("... that an order knows of", len(far), len(repaid & set(refunds))),
        Line("orders cancelled", len(far | declined), len(cancelled & (far | declined))),
        Line("orders shipped", len(good), len(set(shipped) & good)),
        Line("shipments", len(good), len(shipped)),
        Line("chairs gone", len(good), PIECES - left),
    ]

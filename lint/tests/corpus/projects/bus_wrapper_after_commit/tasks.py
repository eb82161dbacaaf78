# ruff: noqa
# expect file: EO401
import dramatiq

from .bus import EventBus
from .models import Inbox, Order
from .uow import UnitOfWork

bus = EventBus()


@dramatiq.actor
def place(event_id, order_id, total):
    with UnitOfWork() as uow:
        uow.session.add(Inbox(event_id=event_id))
        uow.session.flush()
        uow.session.merge(Order(id=order_id, total=total))
    bus.emit("orders", {"id": order_id})

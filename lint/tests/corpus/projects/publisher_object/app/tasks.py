# ruff: noqa
# expect file: P11, EO401
from celery import shared_task
from sqlalchemy.orm import Session

from app.db import engine
from app.models import Order
from app.events import publisher


@shared_task
def ship(order_id: int) -> None:
    with Session(engine) as session:
        order = session.get(Order, order_id)
        order.status = "shipped"
        session.commit()
    publisher.order_shipped(order_id)

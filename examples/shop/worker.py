"""Takes orders from the queue and sees them through: effectonce run worker:worker"""

import orders
from fulfilment import saga
from orders import Order
from settings import BROKER, LEASE, QUEUE

import effectonce as eo

broker = eo.connect_broker(BROKER)
worker = eo.Worker(broker, store=orders.store, name="fulfilment")


@worker.handler(
    QUEUE,
    type="order.placed",
    lease=LEASE,
    retention="30d",
    concurrency=8,
    retry=eo.Retry(50, first="200ms", cap="10s", max_crashes=20),  # its saga waits for the provider; so may it
)
def fulfil(message: eo.Message[Order]) -> None:
    order = message.data
    try:
        saga.run(order.id, order)
    except eo.SagaFailed:  # and what was done is undone; delivered again, it fails again, and this is said again
        with orders.transaction() as session:
            orders.change(session, order, state="cancelled")

"""What `test_whole_apps` kills: a worker whose first attempt at a charge never ends. Its actor asks for no guard."""

import os
import time

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

import effectonce as eo
from effectonce.integrations.dramatiq import Idempotency

broker = RabbitmqBroker(url=os.environ["BROKER"])
store = eo.connect(os.environ["EFFECTONCE_STORE"])
broker.add_middleware(Idempotency(store, every_actor=True, lease="1s"))
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=os.environ["QUEUE"])
def charge(payment_id: str) -> None:
    attempt = eo.current().attempt
    with open("begun.txt", "a") as begun:
        print(payment_id, attempt, file=begun)
    time.sleep(60 if (payment_id, attempt) == ("p1", 1) else 0)

# ruff: noqa
# expect file: P11
from app.workers.sqs import SqsConsumerWorker
from app.orders import OrderService

def main():
    service = OrderService("postgresql://")
    worker = SqsConsumerWorker("https://q", "eu-west-1", handler=service.place)
    worker.start()
    worker.join()

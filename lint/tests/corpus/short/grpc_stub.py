# ruff: noqa
# expect file: clean
import grpc
from celery import shared_task

from protos import ledger_pb2, ledger_pb2_grpc

stub = ledger_pb2_grpc.LedgerStub(grpc.insecure_channel("ledger:50051"))


@shared_task
def sold(sale_id):
    stub.GetSale(ledger_pb2.SaleRequest(id=sale_id))

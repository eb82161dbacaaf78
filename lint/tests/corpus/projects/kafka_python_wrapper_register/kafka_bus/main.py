# ruff: noqa
# expect file: P11
from .consumer import Consumer
from .billing import Billing

def main():
    billing = Billing()
    Consumer(["usage"], group_id="billing").register_handler("usage", billing.bill).consume()

# ruff: noqa
# expect file: P11
from rpc.base import BaseRabbit
from rpc.bank import Bank
class Worker(BaseRabbit):
    def __init__(self, url):
        super().__init__(url)
        self.bank = Bank()
    def start(self):
        self.consume("payouts", self.on_payout)
    def on_payout(self, msg):
        self.bank.transfer(msg["iban"], msg["amount"])

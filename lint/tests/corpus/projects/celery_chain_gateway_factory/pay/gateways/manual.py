# ruff: noqa
from .base import Gateway
class ManualGateway(Gateway):
    def charge(self, customer, cents):
        return None

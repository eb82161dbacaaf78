# ruff: noqa
from .stripe_gateway import StripeGateway
from .manual import ManualGateway

_GATEWAYS = {"stripe": StripeGateway, "manual": ManualGateway}

def get_gateway(name):
    return _GATEWAYS[name]()

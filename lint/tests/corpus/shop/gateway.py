# ruff: noqa
"""The effect is here, two calls away from the task."""

import logging

import stripe as payments

log = logging.getLogger(__name__)


class Gateway:
    def __init__(self, currency="eur"):
        self.currency = currency

    def charge(self, amount, key=None):
        log.info("charging %s", amount)
        if key is None:
            return payments.Charge.create(amount=amount, currency=self.currency)
        return payments.Charge.create(amount=amount, currency=self.currency, idempotency_key=key)

    def look_up(self, charge_id):
        return payments.Charge.retrieve(charge_id)


def even(n):
    return True if n == 0 else odd(n - 1)


def odd(n):
    """Two functions that call each other in a circle."""
    return False if n == 0 else even(n - 1)

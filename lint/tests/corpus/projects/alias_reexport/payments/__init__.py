# ruff: noqa
from ._stripe import take as charge_card

__all__ = ["charge_card"]

"""Broken brokers: each has one defect (F numbers, or one seen in a peer) and names the cases that must catch it.

They stand on the memory broker and break it from outside.
"""

from . import dead_letters, delays, delivery, order, settling
from .base import MUTANTS, Defect, Mutant

__all__ = ["MUTANTS", "Defect", "Mutant", "dead_letters", "delays", "delivery", "order", "settling"]

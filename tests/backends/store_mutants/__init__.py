"""Broken stores: each has one defect (F numbers, or one seen in a peer), and names the cases that must catch it.

They stand on the memory store and break it from outside: `apply` sees one operation before and after it is applied.
"""

from . import claims, fencing, notes, notifications, operator_api, ports, settlements, values
from .base import MUTANTS, Defect, Mutant, MutantBackend
from .notifications import NotifyingPort

__all__ = [
    "MUTANTS",
    "Defect",
    "Mutant",
    "MutantBackend",
    "NotifyingPort",
    "claims",
    "fencing",
    "notes",
    "notifications",
    "operator_api",
    "ports",
    "settlements",
    "values",
]

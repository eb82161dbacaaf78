"""Broken stores: each has one defect (F numbers, or one seen in a peer) and names the case that must see it.

They stand on the memory store and break it from outside: `apply` sees one operation before and after it is done.
"""

from . import changes, claims, fencing, notes, people, ports, settlements, values
from .base import MUTANTS, Defect, Mutant, MutantBackend
from .changes import Notifying

__all__ = [
    "MUTANTS",
    "Defect",
    "Mutant",
    "MutantBackend",
    "Notifying",
    "changes",
    "claims",
    "fencing",
    "notes",
    "people",
    "ports",
    "settlements",
    "values",
]

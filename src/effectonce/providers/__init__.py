"""Stripe and the others: fields, limits, windows, and what their answers mean."""

from .classify import classify, is_ambiguous
from .registry import PROVIDERS, Provider, find
from .verdicts import Verdict

__all__ = ["PROVIDERS", "Provider", "Verdict", "classify", "find", "is_ambiguous"]

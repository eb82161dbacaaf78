"""Stripe and other APIs: where their keys go, how long they keep them, and what their answers mean."""

from .classify import classify, is_ambiguous
from .registry import PROVIDERS, Provider, find_provider
from .verdicts import Verdict

__all__ = ["PROVIDERS", "Provider", "Verdict", "classify", "find_provider", "is_ambiguous"]

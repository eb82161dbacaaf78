"""Outside APIs such as Stripe: where their keys go, how long they keep them, and what their responses mean."""

from .catalog import PROVIDERS, Provider, find_provider
from .classify import classify, is_ambiguous
from .verdicts import Verdict

__all__ = ["PROVIDERS", "Provider", "Verdict", "classify", "find_provider", "is_ambiguous"]

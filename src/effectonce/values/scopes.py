"""The scopes of intents and sagas, which begin with a word of their own; every other scope is that of a guard."""

from __future__ import annotations

from typing import Final, Literal

ScopeKind = Literal["guard", "intent", "saga"]

INTENT_PREFIX: Final = "intents/"
SAGA_PREFIX: Final = "saga/"


def kind_of_scope(scope: str) -> ScopeKind:
    """Return what writes the records of ``scope``."""
    if scope.startswith(INTENT_PREFIX):
        return "intent"
    return "saga" if scope.startswith(SAGA_PREFIX) else "guard"

"""The scopes of intents and sagas, which begin with a word of their own; every other scope is that of a guard.

- ``intents/SCOPE/PROVIDER/OPERATION``
- ``saga/NAME``
"""

from __future__ import annotations

from typing import Final, Literal

ScopeKind = Literal["guard", "intent", "saga"]

INTENT_PREFIX: Final = "intents/"
SAGA_PREFIX: Final = "saga/"

INTENT_SLASHES: Final = 3
"""At least so many are in the scope of an intent. The handler of a queue that is called "intents" has fewer
(QUEUE/TYPE/WORKER), and is a guard."""


def kind_of_scope(scope: str) -> ScopeKind:
    """Return what writes the records of ``scope``."""
    if scope.startswith(INTENT_PREFIX) and scope.count("/") >= INTENT_SLASHES:
        return "intent"
    return "saga" if scope.startswith(SAGA_PREFIX) else "guard"
